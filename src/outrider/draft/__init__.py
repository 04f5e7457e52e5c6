"""draft of Outrider."""
