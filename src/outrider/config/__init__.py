"""config of Outrider."""
