"""An episode of the task as the runner plays it."""

from examples.extend.task.recompute import task


def test_an_episode_has_a_step_for_each_layer_and_a_cost() -> None:
    env = task(layers=3).make_env(0)
    env.reset(seed=1)
    steps = [env.step([0]) for _ in range(3)]  # compute everything again
    assert [step.terminated for step in steps] == [False, False, True]
    assert abs(env.objective() - 1.0) < 1e-9
