"""sampling of Outrider."""
