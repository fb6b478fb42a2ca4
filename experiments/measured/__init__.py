"""What simulators say beside what was measured on real devices."""
