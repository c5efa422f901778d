"""The decision where a new activation lands: who may host it, who is asked, and why the answer is what it is."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import msgspec

from silo.directory.addresses import GrainId, SiloAddress
from silo.directory.logs import get_logger
from silo.directory.membership import SiloRow, View
from silo.placement.candidates import Exclusion, HostsOfView, Narrowing
from silo.placement.failures import PolicyFailures
from silo.placement.nearness import Nearness
from silo.placement.policies import RandomPlacement
from silo.placement.policy import (
    AnswerOutsideView,
    AttachablePolicy,
    Candidate,
    PlacementFilter,
    PlacementPolicy,
    PlacementView,
    PolicyRuntime,
    ScoringPolicy,
)
from silo.placement.rules import ParsedRule, PlacementRule, parse_rule, policy_named

log = get_logger(__name__)

Source = Literal["hint", "near", "force", "declared", "type", "cluster", "default", "fallback"]
"""Who decided: the caller's hint, its wish to be near a peer, the operator's `force_policies`, the grain's declaration,
`type_policies`, the cluster's policy, random for want of all these, or random because the policy raised."""


class Decision(msgspec.Struct, frozen=True):
    """Where a new activation lands, and how that came about."""

    grain: GrainId
    silo: SiloAddress
    policy: str
    """The name of the policy that answered; `hint` or `near` where the caller's word did."""
    source: Source
    candidates: tuple[Candidate, ...]
    excluded: tuple[Exclusion, ...] = ()
    notes: tuple[str, ...] = ()
    """What else mattered: a hint that could not be followed, a policy that raised."""
    scores: Mapping[SiloAddress, float] | None = None
    """How the policy rated the candidates, where it was asked to say so."""
    view_version: int = 0

    def explain(self) -> str:
        """The decision in words, a line for each silo."""
        lines = [f"{self.grain} goes to {self.silo}: {self._decided_by()} (view {self.view_version})"]
        lines += [f"  note: {note}" for note in self.notes]
        scores = self.scores or {}
        for candidate in self.candidates:
            mark = "*" if candidate.silo == self.silo else "-"
            score = f", score {scores[candidate.silo]:.4g}" if candidate.silo in scores else ""
            lines.append(f"  {mark} {candidate}: candidate{score}")
        lines += [f"  x {exclusion}" for exclusion in self.excluded]
        return "\n".join(lines)

    def _decided_by(self) -> str:
        if self.source == "hint":
            return "the caller's hint"
        if self.source == "near":
            return "the caller's wish to be near a peer"
        source = {
            "force": "the cluster's force_policies",
            "declared": "the grain's declaration",
            "type": "the cluster's type_policies",
            "cluster": "the cluster's policy",
            "default": "the default",
            "fallback": "in place of a policy that raised",
        }[self.source]
        return f"policy {self.policy}, {source}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who decides for a kind, and what narrows its candidates."""

    policy: PlacementPolicy
    source: Source
    required: tuple[PlacementFilter, ...]
    advisory: tuple[PlacementFilter, ...]


class Placement:
    """The decision maker of one silo.

    Precedence: the caller's hint, its wish to be near a peer, `force_policies`, what the grain declares,
    `type_policies`, the cluster's `policy`, random. Policies override each other; filters add up, whichever of these
    they come from.

    Args:
        local: the silo that decides.
        rng: the only source of chance.
        policy: the cluster's rule for all kinds.
        type_policies: the cluster's rules for kinds that declare no policy.
        force_policies: the cluster's rules for kinds, over what these declare.
        declared: the rules that grain kinds declare.
        is_eligible: a reason why a silo must receive nothing now (its renewals are late, it is full), or None.
        is_free: a reason to pass over a silo while another one can be had, a caller's hint included (it has as many
            activations in flight as it begins at a time), or None.
        on_chosen: told of each decision.
        is_preferred: a reason to pass over a silo while another one can be had (its event loop lags), or None.
        nearness: how far wishes to be near a peer may fill the peer's silo; without it, they are bounded by nothing.

    Raises:
        InvalidSettings: a rule is not one.
    """

    def __init__(
        self,
        *,
        local: SiloAddress,
        rng: random.Random,
        policy: PlacementRule | None = None,
        type_policies: Mapping[str, PlacementRule] | None = None,
        force_policies: Mapping[str, PlacementRule] | None = None,
        declared: Mapping[str, PlacementRule | None] | None = None,
        is_eligible: Callable[[SiloRow], str | None] | None = None,
        is_preferred: Callable[[SiloRow], str | None] | None = None,
        is_free: Callable[[SiloRow], str | None] | None = None,
        on_chosen: Callable[[GrainId, SiloAddress], None] | None = None,
        nearness: Nearness | None = None,
    ) -> None:
        self._local = local
        self._rng = rng
        self._is_eligible = is_eligible
        self._is_preferred = is_preferred
        self._is_free = is_free
        self._on_chosen = on_chosen
        self._nearness = nearness
        self._random = RandomPlacement()
        self._by_name: dict[str, PlacementPolicy] = {self._random.name: self._random}
        self._cluster = parse_rule(policy, "the cluster's policy", self._named)
        self._types = self._parsed(type_policies, "type_policies[{kind!r}]")
        self._forced = self._parsed(force_policies, "force_policies[{kind!r}]")
        self._declared = self._parsed(declared, "the placement of grain kind {kind!r}")
        self._plans = {kind: self._plan(kind) for kind in {*self._types, *self._forced, *self._declared}}
        self._plan_of_others = self._plan("")
        self._failures = PolicyFailures()
        self._hosts = HostsOfView(local)
        self._attached: ExitStack | None = None
        self._closed = False

    @property
    def policy_failures(self) -> Mapping[str, int]:
        """How often each policy raised or answered outside of its view, by name; filters that raised too."""
        return self._failures.counts()

    def choose(
        self,
        grain: GrainId,
        view: View,
        *,
        hint: SiloAddress | None = None,
        near: SiloAddress | None = None,
        with_scores: bool = False,
    ) -> Decision:
        """Decide where a new activation of the grain lands.

        Args:
            hint: taken where it may host the grain; otherwise the policy decides, and the decision notes why.
            near: the silo of a grain that this one will talk to most. Taken where it may host the grain, nothing speaks
                against it and it has not too much already; otherwise the policy decides, and the decision notes why.
            with_scores: also ask the policy how it rates the candidates, which costs time and is for explanations.

        Raises:
            GrainUnplaceable: no silo may host the grain.
            AnswerOutsideView: the policy's answer is not one of its candidates.
        """
        plan = self._plans.get(grain.kind, self._plan_of_others)
        narrowing = self._narrowed_to_eligible(plan, grain, view)
        if not narrowing.candidates:
            raise narrowing.refusal()
        if self._is_free is not None:
            narrowing.avoid("is_free", self._is_free)
        decision = self._decided(plan, grain, view, narrowing, hint, near, with_scores)
        if self._on_chosen is not None:
            self._on_chosen(grain, decision.silo)
        return decision

    def place(self, grain: GrainId, view: View, *, hint: SiloAddress | None = None) -> SiloAddress:
        """Where `choose` has it land, for those who need not know why: a hint that is followed takes no look at the
        other silos.
        """
        if hint is None or not self._follows(hint, grain, view):
            return self.choose(grain, view, hint=hint).silo
        if self._on_chosen is not None:
            self._on_chosen(grain, hint)
        return hint

    def _follows(self, hint: SiloAddress, grain: GrainId, view: View) -> bool:
        """Whether the hint is surely taken, whatever can be said of other silos."""
        row = self._hosts.of(grain.kind, view).rows.get(hint)
        return (
            row is not None
            and not self._plans.get(grain.kind, self._plan_of_others).required
            and (self._is_eligible is None or self._is_eligible(row) is None)
            and (self._is_free is None or self._is_free(row) is None)
        )

    def _decided(
        self,
        plan: _Plan,
        grain: GrainId,
        view: View,
        narrowing: Narrowing,
        hint: SiloAddress | None,
        near: SiloAddress | None,
        with_scores: bool,
    ) -> Decision:
        """By the hint, where it may be followed; else near the peer, where that does no harm; else by the policy."""
        if hint is not None:
            if hint in narrowing:
                return _decision(grain, hint, "hint", "hint", narrowing, view)
            narrowing.notes.append(f"the hint {hint} was not followed: {narrowing.why_not(hint)}")
        if self._is_preferred is not None:
            narrowing.avoid("is_preferred", self._is_preferred)
        for advisory in plan.advisory:
            narrowing.prefer(advisory, self._failures)
        if near is not None:
            why_not = self._why_not_near(near, narrowing)
            if why_not is None:
                return _decision(grain, near, "near", "near", narrowing, view)
            narrowing.notes.append(f"the grain is not placed near its peer on {near}: {why_not}")
        offered = PlacementView(view.version, narrowing.candidates, self._rng)
        scores = self._scores(plan.policy, grain, offered) if with_scores else None
        silo, policy, source = self._ask(plan, grain, offered, narrowing.notes)
        return _decision(grain, silo, policy, source, narrowing, view, scores)

    def _why_not_near(self, near: SiloAddress, narrowing: Narrowing) -> str | None:
        if near not in narrowing:
            return narrowing.why_not(near)
        if self._nearness is None:
            return None
        return self._nearness.why_not(near, narrowing.candidates, self._local)

    def attach(self, runtime: PolicyRuntime) -> None:
        """Attach each policy, once, however many kinds share it. One whose `attach` raises goes on without."""
        if self._attached is not None or self._closed:
            raise RuntimeError("this placement was attached before" if not self._closed else "this placement is closed")
        self._attached = ExitStack()
        if self._nearness is not None:
            self._attached.callback(self._nearness.attach(runtime))
        policies = [self._plan_of_others.policy, *(plan.policy for plan in self._plans.values())]
        for policy in {id(policy): policy for policy in policies}.values():
            if not isinstance(policy, AttachablePolicy):
                continue
            try:
                teardown: object = policy.attach(runtime)
                if teardown is not None and not callable(teardown):
                    _discard(teardown)
                    raise TypeError(f"attach returned {teardown!r}, neither a teardown nor None")
            except Exception as error:  # a policy's mistake must not stop the silo
                self._failures.count(policy.name, "attach", error)
            else:
                if teardown is not None:
                    self._attached.callback(self._tear_down, policy, teardown)

    def close(self) -> None:
        """Run each teardown, once; a second call does nothing."""
        self._closed = True
        if self._attached is not None:
            self._attached.pop_all().close()

    def _tear_down(self, policy: PlacementPolicy, teardown: Callable[[], object]) -> None:
        try:
            teardown()
        except Exception as error:  # the other teardowns must run
            self._failures.count(policy.name, "teardown", error)

    def _named(self, name: str) -> PlacementPolicy:
        if name not in self._by_name:
            self._by_name[name] = policy_named(name)
        return self._by_name[name]

    def _parsed(self, rules: Mapping[str, PlacementRule | None] | None, where: str) -> dict[str, ParsedRule]:
        return {
            kind: parse_rule(rule, where.format(kind=kind), self._named)
            for kind, rule in (rules or {}).items()
            if rule is not None
        }

    def _plan(self, kind: str) -> _Plan:
        nothing = ParsedRule()
        levels: list[tuple[Source, ParsedRule]] = [
            ("force", self._forced.get(kind, nothing)),
            ("declared", self._declared.get(kind, nothing)),
            ("type", self._types.get(kind, nothing)),
            ("cluster", self._cluster),
        ]
        source, policy = self._first_policy(levels)
        declared = levels[1][1].policy
        if source == "force" and declared is not None:
            log.info("placement.declaration_overridden", kind=kind, policy=policy.name, declared=declared.name)
        filters = [narrowing for _, rule in levels for narrowing in rule.filters]
        return _Plan(
            policy,
            source,
            tuple(narrowing for narrowing in filters if not narrowing.advisory),
            tuple(narrowing for narrowing in filters if narrowing.advisory),
        )

    def _first_policy(self, levels: list[tuple[Source, ParsedRule]]) -> tuple[Source, PlacementPolicy]:
        for source, rule in levels:
            if rule.policy is not None:
                return source, rule.policy
        return "default", self._random

    def _narrowed_to_eligible(self, plan: _Plan, grain: GrainId, view: View) -> Narrowing:
        narrowing = Narrowing(grain, view, self._hosts.of(grain.kind, view), self._hosts.here)
        if self._is_eligible is not None:
            narrowing.demand(self._is_eligible)
        for required in plan.required:
            narrowing.require(required, self._failures)
        return narrowing

    def _ask(
        self, plan: _Plan, grain: GrainId, offered: PlacementView, notes: list[str]
    ) -> tuple[SiloAddress, str, Source]:
        try:
            answer = plan.policy.choose(grain, offered, self._local)
        except Exception as error:  # calls do not fail because a policy has a bug
            self._failures.count(plan.policy.name, "choose", error)
            notes.append(f"policy {plan.policy.name} raised {error!r}")
            return self._random.choose(grain, offered, self._local), self._random.name, "fallback"
        if answer not in offered:
            name = plan.policy.name
            message = f"policy {name!r} placed {grain} on {answer!r}, which is none of the silos that it was offered"
            _discard(answer)
            refused = AnswerOutsideView(message, name)
            self._failures.count(name, "choose", refused)
            raise refused
        return answer, plan.policy.name, plan.source

    def _scores(
        self, policy: PlacementPolicy, grain: GrainId, offered: PlacementView
    ) -> Mapping[SiloAddress, float] | None:
        if not isinstance(policy, ScoringPolicy):
            return None
        try:
            return dict(policy.scores(grain, offered, self._local))
        except Exception as error:  # an explanation must not change what it explains
            self._failures.count(policy.name, "scores", error)
            return None


def _decision(
    grain: GrainId,
    silo: SiloAddress,
    policy: str,
    source: Source,
    narrowing: Narrowing,
    view: View,
    scores: Mapping[SiloAddress, float] | None = None,
) -> Decision:
    notes = tuple(narrowing.notes)
    return Decision(grain, silo, policy, source, narrowing.candidates, narrowing.excluded, notes, scores, view.version)


def _discard(answer: object) -> None:
    if inspect.iscoroutine(answer):  # a policy written as async: say so once, in the error, not in a warning as well
        answer.close()
