"""The pure core, case by case."""
