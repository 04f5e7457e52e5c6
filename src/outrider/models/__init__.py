"""models of Outrider."""
