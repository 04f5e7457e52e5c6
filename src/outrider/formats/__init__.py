"""formats of Outrider."""
