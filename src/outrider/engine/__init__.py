"""engine of Outrider."""
