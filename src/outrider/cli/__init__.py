"""cli of Outrider."""
