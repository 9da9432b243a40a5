"""Settings of every test run, of tests/ and of `pytest --nbval book/`."""

from pathlib import Path

from tools.notebooks import kernel_environment

ROOT = Path(__file__).resolve().parent

# Before anything imports torch, and before the workers start kernels.
kernel_environment(ROOT)


def pytest_configure(config):
    """Let nbval's sanitizer be found from whatever folder pytest starts in."""
    if getattr(config.option, "nbval_sanitize_with", None) is None:
        config.option.nbval_sanitize_with = str(ROOT / "tools" / "nbval_sanitize.cfg")
