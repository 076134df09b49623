"""Adapters: one module for each framework. Each says what is exact there, and refuses what its hooks cannot do."""
