"""Commands that give real links the rates of a plan: tc, Open vSwitch, policy routing."""
