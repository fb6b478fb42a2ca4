# The project's commands. A fresh machine needs make, bash and Python 3.11 or newer.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first interpreter that is new enough and can make virtual environments.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
# Compiled modules are kept: many processes start, each a second faster.
unexport PYTHONDONTWRITEBYTECODE
# Overrides for the main job, for example: make run ARGS="budget_s=30 seed=1"
ARGS ?=

.PHONY: help venv run seeds placement ratio gain joint cluster learned study placer claims warm quick test frozen proof mutations check bench docs clean

help:  ## this list
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18
	@echo "  Times are those of two idle cores; the first time, simulators are compiled: one to four minutes more."

venv: $(STAMP)  ## create .venv with the pinned dependencies and this project

run: $(STAMP)  ## the main job: capture, learn, compare, export (ARGS="key=value ...")
	@$(BIN)/python -m experiments.main $(ARGS)
	@command -v meshwright >/dev/null || echo "meshwright as a command: source $(BIN)/activate" >&2

seeds: $(STAMP)  ## the main job over five seeds: means and 95 % intervals
	@$(BIN)/python -m experiments.study study=seeds $(ARGS)

placement: $(STAMP)  ## all planners on all problems: hours (ARGS="study=placement_quick": a minute)
	@$(BIN)/python -m experiments.study study=placement $(ARGS)

ratio: $(STAMP)  ## search time without fusion over that with it, four opponents: five hours
	@$(BIN)/python -m experiments.study study=search_ratio $(ARGS)

gain: $(STAMP)  ## what the order of a plan brings, and what a search brings beyond it: two hours
	@$(BIN)/python -m experiments.study study=order_gain $(ARGS)

joint: $(STAMP)  ## placement with the weights of transfers, against uniform and fair: 1.5 hours
	@$(BIN)/python -m experiments.study study=joint $(ARGS)

cluster: $(STAMP)  ## all scheduling policies on one trace (ARGS="trace.path=... trace.format=...")
	@$(BIN)/python -m experiments.compare $(ARGS)

learned: $(STAMP)  ## the shipped cluster scheduler beside every policy, on generated traces: two minutes
	@$(BIN)/python -m experiments.study study=generalise split=synthetic $(ARGS)

study: $(STAMP)  ## learned cluster schedulers, five seeds, from nothing to their table: four hours
	@$(BIN)/python -m experiments.study study=schedulers $(ARGS)

# A placement policy from nothing; ARGS are overrides of its last and longest step.
PLACER ?= outputs/placer
placer: $(STAMP)  ## a placement policy: labels, imitation, PPO: under three hours (PLACER=<folder>)
	@$(BIN)/python -m experiments.train labels=$(PLACER)/data problems=1100 \
		distribution.most_groups=128
	@$(BIN)/python -m experiments.train env=labelled_problems env.folder=$(PLACER)/data \
		training.cloning.iterations=100000 training.cloning.last_share=0 training.budget_s=420 \
		training.evaluate_every=150 agent.num_envs=32 agent.group_size=1 agent.group_kept=null \
		agent.normalise_advantages=batch hydra.run.dir=$(PLACER)/imitation
	@$(BIN)/python -m experiments.train env=problems model=placer_continued \
		model.checkpoint=$(PLACER)/imitation/checkpoint training.budget_s=4500 \
		training.evaluate_every=60 training.evaluation_episodes=64 hydra.run.dir=$(PLACER)/ppo $(ARGS)

claims: $(STAMP)  ## what is claimed and what was measured (ARGS="rerun=[flow_times]" runs one again)
	@$(BIN)/python -m experiments.claims $(ARGS)

# What runs on toys and on few jobs compiles all that a first run would have to.
TOY := env=placement_toy
WARM_STEP := "agent=heft $(TOY)" "agent=m_etf $(TOY)" "agent=m_sct $(TOY)" \
	"agent=local_search $(TOY)" "agent=fusion_milp $(TOY)" "agent=learned $(TOY)" \
	"agent=dp problem=max_load $(TOY)" "agent=dp problem=latency $(TOY)" \
	"agent=convex problem=bandwidth env=bandwidth_toy" \
	"agent=alternation problem=joint env=joint_toy"
warm: $(STAMP)  ## compile every kernel once, beforehand: minutes
	@run() { app=$$1; shift; $(BIN)/python -m experiments.$$app "$$@" json=true \
		hydra.run.dir=outputs/warm/$$(date +%s%N) >/dev/null; }; \
	for words in $(WARM_STEP); do echo "plan $$words"; \
		run plan budget_s=1 $$words; done; \
	for rules in "placement=best_fit" "placement=least_interference interference=analytic"; do \
		echo "compare $$rules"; run compare trace.jobs=64 $$rules; done; \
	echo "evaluate agent=checkpoint"; run evaluate env=cluster agent=checkpoint trace.jobs=32; \
	rm -rf outputs/warm

quick: $(STAMP)  ## the tests of the inner loop: no process, no Ray, no training, no export: a minute
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --hypothesis-profile=quick tests

test: $(STAMP)  ## every property on a sample of its examples: minutes
	@$(BIN)/python -m pytest -n 2 --dist worksteal tests

frozen: $(STAMP)  ## figures that may not move, those of torch beside an older tree's: half an hour, twice that at first (ARGS="group ...")
	@$(BIN)/python -m tests.frozen $(ARGS)

proof: $(STAMP)  ## every property at full strength: an hour (MESHWRIGHT_DATA)
	@$(BIN)/python -m pytest -n 2 --dist worksteal --timeout 1800 --hypothesis-profile=proof tests

mutations: $(STAMP)  ## forty faults, one at a time: which test catches each? (ARGS="--only WORD")
	@$(BIN)/python -m tests.proof.mutations $(ARGS)

check: $(STAMP)  ## formatting, lint, types, dependency rule
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports & imports=$$!; types=0; $(BIN)/mypy || types=$$?; wait $$imports; exit $$types

bench: $(STAMP)  ## speed of the simulator, one process, nothing beside it
	@$(BIN)/python tests/benchmarks/step_speed.py

docs: $(VENV)/.docs  ## this project's site, in site/: minutes the first time, while pictures are drawn
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html"

clean:  ## remove caches and build products; .venv and outputs stay
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info site .cache

$(VENV)/.docs: docs/requirements.lock $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $< -c requirements.lock
	@touch $@

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer with venv is needed" >&2; exit 1; }
	@echo "Setting up $(VENV) (once, two to three minutes; the log is $(VENV)/install.log)"
	@$(PYTHON) -m venv $(VENV)
	@every=30; end='\n'; if test -t 1; then every=1; end='\r'; fi; \
	while sleep $$every >/dev/null; do printf "  installing: $$SECONDS s$$end"; \
	done & trap "kill $$!; test ! -t 1 || printf '\033[K'" EXIT; \
	$(BIN)/python -m pip install --progress-bar off --disable-pip-version-check \
		-r requirements.lock >$(VENV)/install.log 2>$(VENV)/install.err \
		|| { cat $(VENV)/install.err >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
	@echo "Ready: source $(BIN)/activate"
