"""A bandwidth plan on real machines: scripts for tc or Open vSwitch, and policy routing."""
