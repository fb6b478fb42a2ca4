"""The best strategies on a grid, by linear programs."""

from __future__ import annotations

import numpy as np

from agents.linear_program import LinearProgram
from envs.arrays import FloatArray
from envs.pricing.problem import PricingProblem
from envs.pricing.worst_case import RequestTree


def best_sales(problem: PricingProblem, *, seconds: float = 60.0) -> tuple[FloatArray, float]:
    """The shares (m,) to sell at each new highest level, and their ratio: the least on this grid.

    Guarantees:
        Optimal among all randomised rules for one unit, and for units without end: a program with
        a row for every level at which prices may stop rising.

    Source:
        Own; the game is that of El-Yaniv, Fiat, Karp, Turpin: *Optimal search and one-way trading
        online algorithms*, Algorithmica 2001.
    """
    m, prices, salvage = len(problem.prices), problem.prices, problem.salvage
    program = LinearProgram()
    score = program.add_columns(1, cost=-1.0)
    share, own = program.add_columns(m), program.add_columns(m, lower=-np.inf)
    program.add_row([(share, 1.0)], upper=1.0)
    program.add_row([(own[:1], 1.0), (share[:1], salvage - prices[0])], lower=0.0, upper=0.0)
    program.add_rows(
        m - 1,
        [(own[1:], 1.0), (own[:-1], -1.0), (share[1:], (salvage - prices[1:])[:, None])],
        lower=0.0,
        upper=0.0,
    )
    program.add_rows(m, [(own, 1.0), (np.repeat(score, m), -prices[:, None])], lower=-salvage)
    solution = np.array(_solved(program, seconds))
    return solution[share], float(1.0 / solution[score[0]])


def best_ratio(tree: RequestTree, *, seconds: float = 120.0) -> float:
    """The least ratio of expected values to hindsight of all randomised rules on a tree.

    Guarantees:
        Optimal: values add up along a sequence, so of what a rule did before only its state counts;
        the variables are the chances to come to a node in a state and to take its request.

    Source:
        Sequence form: Koller, Megiddo, von Stengel: *Fast algorithms for finding randomized
        strategies in game trees*, STOC 1994.
    """
    problem, program = tree.problem, LinearProgram()
    q, states = problem.requests, len(tree.wait)
    score = program.add_columns(1, cost=-1.0)
    there = program.add_columns((1, states), upper=np.eye(states)[0], lower=np.eye(states)[0])
    own = program.add_columns(1, lower=problem.closing[0], upper=problem.closing[0])
    for optimum in tree.optimum:
        nodes = len(there)
        yes = program.add_columns((nodes, q, states), upper=tree.fits)
        then = program.add_columns((nodes, q, states))
        after = program.add_columns((nodes, q), lower=-np.inf)
        parent = np.broadcast_to(there[:, None], yes.shape)
        program.add_rows(yes.size, [(yes.ravel(), -1.0), (parent.ravel(), 1.0)], lower=0.0)
        for r in range(q):
            # state by state: what arrives by waiting and by taking
            into = np.hstack([tree.wait.T, (tree.take[r] - tree.wait).T])  # (S, 2 S)
            columns = np.hstack([there, yes[:, r]])  # (nodes, 2 S)
            for s in range(states):
                program.add_rows(
                    nodes, [(then[:, r, s], 1.0), (columns, -into[s][None])], lower=0.0, upper=0.0
                )
            program.add_rows(
                nodes,
                [(after[:, r], 1.0), (own, -1.0), (yes[:, r], -tree.gain[r])],
                lower=0.0,
                upper=0.0,
            )
        there, own = then.reshape(-1, states), after.ravel()
        program.add_rows(
            len(own), [(own, 1.0), (np.repeat(score, len(own)), -optimum[:, None])], lower=0.0
        )
    return float(1.0 / _solved(program, seconds)[score[0]])


def _solved(program: LinearProgram, seconds: float) -> list[float]:
    solver = program.solver(time_limit=seconds)
    solver.run()
    found: list[float] = solver.getSolution().col_value
    return found
