"""server of Outrider."""
