"""The handover protocol, explored whole: `python -m tests.exploration.handover`."""
