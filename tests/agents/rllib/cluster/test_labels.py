"""Labels of what jobs still need are what the simulator then takes."""

from __future__ import annotations

import numpy as np
from schedulers import environment

from agents.rllib.cluster.labels import NO_JOB, remaining_seconds
from agents.rllib.cluster.lane import Lane
from agents.rllib.cluster.memory import ObservationMemory
from envs.cluster.simulation.cluster_state import NONE


def test_a_running_job_ends_after_what_it_still_needs() -> None:
    env = environment(jobs=14)
    lane = Lane(env, 0)
    space = env.observation_space(env.possible_agents[0])
    memory = ObservationMemory(env.observation, space, 1, 2)
    labels = np.zeros((2, 9), np.float32)
    rng = np.random.default_rng(0)
    running = waiting = 0
    for seed in range(3):
        lane.reset(seed)
        over = False
        while not over:
            lane.observe(memory, 0, labels)
            episode = lane.episode
            jobs = episode.simulator.state.jobs
            for scheduler in range(2):
                shown = episode.book.shown[scheduler]
                window = episode.book.window[scheduler]
                assert ((labels[scheduler] == NO_JOB) == (np.append(window, shown) == NONE)).all()
                for place in np.flatnonzero(shown != NONE):  # every job runs at rate 1
                    left = jobs["end"][shown[place]] - lane.now
                    np.testing.assert_allclose(labels[scheduler, 3 + place], left, rtol=1e-5)
                    running += 1
                for place in np.flatnonzero(window != NONE):
                    job = jobs[window[place]]
                    np.testing.assert_allclose(
                        labels[scheduler, place], job["work"] - job["executed"], rtol=1e-5
                    )
                    waiting += 1
            masks = memory.masks[0]
            joint = [int(rng.choice(np.flatnonzero(mask))) for mask in masks]
            step = lane.step(joint, masks)
            over = step.terminated or step.truncated
    assert running > 50
    assert waiting > 20


def test_labels_change_nothing() -> None:
    env = environment()
    env.reset(seed=0)
    before = env.simulator.state.jobs.copy()
    env.episode.observe(0)
    remaining_seconds(env.episode, 0, np.zeros(9, np.float32))
    np.testing.assert_array_equal(env.simulator.state.jobs, before)
