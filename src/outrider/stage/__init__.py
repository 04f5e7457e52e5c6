"""stage of Outrider."""
