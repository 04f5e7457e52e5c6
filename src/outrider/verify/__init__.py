"""verify of Outrider."""
