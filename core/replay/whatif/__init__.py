"""What-if: recorded runs that go on from a moment under other conditions, their journals and their results."""
