"""Loads trained models from workdirs, exports and the hub, and writes them in other formats."""
