"""What the pytest plug-in is made of: generated tests, one run a session, one report."""
