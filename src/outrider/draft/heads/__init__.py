"""heads of Outrider."""
