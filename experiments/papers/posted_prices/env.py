"""`Pricing-v0`: a rule that takes requests or not, and an adversary that chooses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.frame import new_frame, pixels
from envs.parallel_env import Begun, DecisionsEnv, Terms
from envs.spaces import flags
from experiments.papers.posted_prices.problem import PricingProblem, price_search

Observation = dict[str, NDArray[Any]]

RULE, ADVERSARY = "rule", "adversary"
WAIT, REFUSE, TAKE = range(3)  # of the rule; 0 waits for the adversary too
TOY_RATIO = 2.0  # of the best deterministic rule, by trying every sequence against every choice


class PricingEnv(DecisionsEnv[Observation]):
    """Take requests at posted prices, whose sequence an adversary makes up meanwhile.

    ## Description
    A PettingZoo `ParallelEnv` with two agents that take turns: the `adversary` chooses the next
    request, or ends the episode; then the `rule` takes it or not. The other one waits.

    ## Observation Space
    For both `features`, float32 in [0, 1]: whether a request is there, its place among the levels,
    its kind one-hot (K); the least and the greatest level so far; the share of rounds played; the
    share of every resource in use for good and for so many rounds yet. And `action_mask`, int8: the
    rule may always refuse, the adversary always choose any request.

    ## Action Space
    Rule: `Discrete(3)`: wait, refuse, take. Adversary: `Discrete(Q + 2)`: wait, request 0 to Q - 1,
    end (after a round at least). What the mask forbids is a refusal, or request 0.

    ## Reward
    At the end, zero-sum: the rule gets value / hindsight (to buy: the inverse), the adversary minus
    that; in `info` as `reward_score`. One unit, forced, prices 1, 2, 4: a rule that takes 2 and is
    shown 4 afterwards gets 2 / 4 = 0.5.

    ## Starting State
    Nothing is in use, no request is there. Nothing is random.

    ## Episode End
    Both are terminated after the last round, or when the adversary ends it. No truncations.

    ## Information
    `score` (if the episode ended now), `rounds`, `action_mask`, after a step `reward_score`.

    ## Arguments
    * `problem`: by default search for one unit over nine levels, phi = 16.
    * `render_mode`: `"rgb_array"` draws the prices so far and which were taken.

    ## Guarantees
    At least one action is always allowed; all episodes start alike; PettingZoo's API tests pass.
    The best ratio of a deterministic rule in the toy is proved by trying every sequence.

    ## Source
    Own environment; the game of a rule and an adversary is that of Du, Huang, Wu, "Adversarial Deep
    Learning for Online Resource Allocation", ACM TOMPECS 2021. The interface is that of Terry et
    al., "PettingZoo: Gym for Multi-Agent Reinforcement Learning", NeurIPS 2021.

    ## Version History
    * v0: first version.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "meshwright/Pricing-v0",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self, problem: PricingProblem | None = None, *, render_mode: str | None = None
    ) -> None:
        self.problem = problem or price_search(16.0, 9, 1, rounds=12)
        self.render_mode = render_mode
        self.possible_agents = [RULE, ADVERSARY]
        self.agents: list[str] = []
        self._end = self.problem.requests + 1
        self.action_spaces = {
            RULE: spaces.Discrete(3),
            ADVERSARY: spaces.Discrete(self._end + 1),
        }
        width = 5 + len(self.problem.kinds) + self.problem.states[0][0].size
        features = spaces.Box(0.0, 1.0, (width,), np.float32)
        self.observation_spaces = {
            agent: spaces.Dict({"features": features, "action_mask": flags(int(own.n))})
            for agent, own in self.action_spaces.items()
        }

    def begin(self, rng: np.random.Generator) -> Begun[Observation]:
        """Start an episode; all are alike."""
        self.agents = self.possible_agents.copy()
        self._best, self._state, self._value = self.problem.nothing_known, 0, 0.0
        self._shown: list[int] = []
        self._taken: list[bool] = []
        return self.observe(), self.infos([{}] * 2)

    def play(self, chosen: Sequence[int]) -> tuple[Sequence[Terms], bool, bool]:
        """The next request, or the answer to it."""
        self.require_running()
        (answer, action), (rule, adversary) = chosen, self._masks
        if self._asked:
            take = answer == TAKE and bool(rule[TAKE])
            request, (_, wait, following) = self._shown[-1], self.problem.states
            kind = request // len(self.problem.prices)
            self._value += float(self.problem.value[request]) * take
            self._state = int(following[kind, self._state] if take else wait[self._state])
            self._best = self.problem.hindsight(self._best, request)
            self._taken.append(take)
            ended = len(self._taken) == self.problem.rounds
        else:
            action = action if adversary[action] else 1
            ended = action == self._end
            self._shown += [] if ended else [action - 1]
        reward = self._score() if ended else 0.0
        if ended:
            self.agents = []
        return [{"score": reward}, {"score": -reward}], ended, False

    def render(self) -> Any:
        """(H, W, 3) uint8 picture of the prices so far; None without a render mode."""
        if self.render_mode != "rgb_array":
            return None
        figure = new_frame()
        axes = figure.subplots()
        price = self.problem.prices[np.array(self._shown, dtype=int) % len(self.problem.prices)]
        taken = np.array([*self._taken, False][: len(price)], dtype=bool)
        for those, colour, label in ((taken, "tab:blue", "taken"), (~taken, "0.8", "not taken")):
            axes.bar(np.flatnonzero(those), price[those], color=colour, label=label)
        axes.set(xlabel="round", ylabel="price", ylim=(0.0, self.problem.prices[-1]))
        axes.legend(loc="upper left")
        return pixels(figure)

    @property
    def _asked(self) -> bool:
        """Whether a request is there, which the rule has to answer."""
        return bool(self.agents) and len(self._shown) > len(self._taken)

    def _score(self) -> float:
        best = float((self._best + self.problem.closing).max())
        return self.problem.score(self._value + float(self.problem.closing[self._state]), best)

    def observe(self) -> dict[str, Observation]:
        """What both see, and what they may do."""
        problem, m = self.problem, len(self.problem.prices)
        level = [request % m / (m - 1) for request in self._shown] or [0.0]
        kinds = np.zeros(len(problem.kinds))
        rule, adversary = np.zeros(3, dtype=np.int8), np.ones(self._end + 1, dtype=np.int8)
        if self._asked:
            kind = self._shown[-1] // m
            kinds[kind], rule[REFUSE], adversary[1:] = 1.0, 1, 0
            rule[TAKE] = problem.states[2][kind, self._state] >= 0
        else:
            rule[WAIT], adversary[0], adversary[self._end] = 1, not self.agents, bool(self._taken)
        used = problem.states[0][self._state] / np.array(problem.capacity)[:, None]
        past = (min(level), max(level), len(self._taken) / problem.rounds)
        parts = ([self._asked, level[-1] * self._asked], kinds, past, used.ravel())
        features = np.concatenate(parts).astype(np.float32)
        self._masks = [rule, adversary]
        return {
            agent: {"features": features.copy(), "action_mask": mask}
            for agent, mask in zip(self.possible_agents, self._masks, strict=True)
        }

    def facts(self) -> dict[str, Any]:
        """What the rule has come to so far."""
        return {"score": self._score(), "rounds": len(self._taken)}


def toy_environment(**arguments: Any) -> PricingEnv:
    """`PricingToy-v0`: one unit, forced sale at 1, prices 1, 2, 4, four rounds; `TOY_RATIO`."""
    return PricingEnv(price_search(4.0, 3, 1, rounds=4), **arguments)
