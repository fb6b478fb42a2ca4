"""What tests of papers' commands share with those of all others."""

from tests.experiments.conftest import says_only_what_it_finds, work  # noqa: F401
