"""ops of Outrider."""
