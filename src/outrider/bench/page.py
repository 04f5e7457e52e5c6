"""The report as one page."""

from outrider.bench.record import Record


def render(record: Record) -> str:
    """Placeholder until the plots stand."""
    return f"<!doctype html><title>{record['sentence']}</title>"
