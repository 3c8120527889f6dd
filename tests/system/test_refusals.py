# SPDX-License-Identifier: Apache-2.0
"""Whom and what a running host refuses: wrong keys, second lives, nonsense and poison; it lives on and says so."""

from __future__ import annotations

import struct

from paceline import wire
from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared, endpoint_of
from .raw_peer import RawPeer


def test_wrong_keys_are_refused_in_words_on_both_sides(bench: Bench) -> None:
    bench.make_keys("good", "unknown", "misled")
    (bench.folder / "keys" / "boards" / "unknown.pub").unlink()
    bench.call("paceline", "keys", "other", "--dir", bench.folder)
    host = bench.host(bench.experiment("keys", {"rounds": 2, "budget": 100}, fleet=only(bench, "good")))
    endpoint = endpoint_of(host)

    unknown = bench.agent("unknown", endpoint)
    misled = bench.agent("misled", endpoint, host_key="../other.pub")

    assert unknown.ends() == 5, unknown.err
    assert "the host refused this board's key, fingerprint" in unknown.err
    assert "put this board's .pub file" in unknown.err
    assert misled.ends() == 5, misled.err
    assert "public_key in agent.toml is probably not that host's key" in misled.err
    host.says("refused an unknown key from 127.0.0.1, fingerprint")
    host.says("a connection failed the CURVE handshake: that peer pins another host key")

    bench.agent("good", endpoint)
    assert host.ends() == 0, host.err


def only(bench: Bench, board: str) -> dict[str, object]:
    """Return a fleet of one board alone, whatever other keys lie about."""
    for path in (bench.folder / "keys" / "boards").glob("*.pub"):
        if path.stem != board:
            path.unlink()
    return {"kind": "boards", "keys": "keys"}


def test_of_two_agents_with_one_key_the_newer_works_and_the_older_says_why_it_ends(bench: Bench) -> None:
    bench.make_keys("twin")
    host = bench.host(bench.experiment("twins", {"rounds": 3, "budget": 300}))
    endpoint = endpoint_of(host)
    older = bench.agent("twin", endpoint, state="state-older", name="older.toml")
    bench.watch("twins-001/time", "a plan", lambda ledger: bool(ledger.slices(1)), host)

    newer = bench.agent("twin", endpoint, state="state-newer", name="newer.toml")

    assert older.ends() == 5, older.err
    assert "a newer session of twin has taken over" in older.err
    assert host.ends() == 0, host.err
    assert newer.process.poll() is None, "the newer one goes on serving"
    assert "another machine says hello with the same key" in host.err
    with Ledger(bench.folder / "runs" / "twins-001" / "time") as ledger:
        assert ledger.verify().faults == ()
        assert ledger.boards()[0].agent_pid == newer.pid


def test_nonsense_and_poison_from_a_valid_key_cost_the_others_nothing(bench: Bench) -> None:
    bench.make_keys("evil", "good")
    host = bench.host(bench.experiment("poison", {"rounds": 3, "budget": 400, "policies": ["equal"]}))
    endpoint = endpoint_of(host)
    bench.agent("good", endpoint, Declared(speed=4.0))
    with RawPeer(bench.folder, "evil", endpoint) as oversized:
        oversized.send_frames(b"x" * (wire.MAX_FRAME + 1), b"")
        assert oversized.is_cut_off(), "by the transport, before the frame is in memory"
    with RawPeer(bench.folder, "evil", endpoint) as evil:
        evil.send_frames(b"three", b"frames", b"together")
        evil.send_frames(b"no msgpack at all \xff\xfe", b"")
        evil.send_frames(b"\x80" + b"x" * wire.HEADER_BYTES, b"")
        evil.send(wire.Taken(evil.session, 1))
        evil.hello()
        evil.ready()
        poison = 0
        for _ in range(3):  # as often as the host lets it
            assign, model_bytes = evil.take()
            poison = poison or model_bytes
            nan = struct.pack("<f", float("nan")) * (poison // 4)
            evil.commit(assign.lease + 1000)
            stale = evil.hear(wire.Answer)
            assert (stale.verdict, stale.lease) == ("stale", assign.lease + 1000)
            evil.upload(assign, nan)
            answer = evil.hear(wire.Answer)
            assert (answer.verdict, answer.lease) == ("rejected", assign.lease)
            assert "not finite" in answer.reason or "NaN" in answer.reason
        assert host.ends() == 0, host.err

    assert "evil sent a malformed message, dropped: header is not msgpack" in host.err
    assert "evil sent a malformed message, dropped: header of" in host.err
    assert "evil: update refused: " in host.err
    assert "evil: 3 failures in a row, no more work in this run" in host.err
    with Ledger(bench.folder / "runs" / "poison-001" / "equal") as ledger:
        assert ledger.verify().faults == ()
        rejected = ledger.contributions(verdict="rejected")
        assert [(c.round, c.board) for c in rejected] == [(1, 0), (2, 0), (3, 0)]
        for c in rejected:
            assert [s.board for s in ledger.slices(c.round) if s.redealt_from == c.slice] == [1]
        assert {c.board for c in ledger.contributions(verdict="accepted")} == {1}
        assert all(event.board == 0 for event in ledger.events("rejected"))
        (dropped,) = ledger.events("dropped")
        assert "2 malformed" in dropped.detail
        assert "3 stale-lease" in dropped.detail
        assert "1 no-session" in dropped.detail
        assert "1 wrong-frames" in dropped.detail
        assert dropped.detail in host.err


def test_a_result_that_does_not_match_its_assignment_is_refused(bench: Bench) -> None:
    bench.make_keys("good", "liar")
    host = bench.host(bench.experiment("lies", {"rounds": 1, "budget": 100, "policies": ["equal"]}))
    endpoint = endpoint_of(host)
    bench.agent("good", endpoint, Declared(speed=4.0))
    with RawPeer(bench.folder, "liar", endpoint) as liar:
        liar.hello()
        liar.ready()
        assign, nbytes = liar.take()
        liar.upload(assign, bytes(nbytes), samples=49)
        cancel = liar.hear(wire.Cancel)
        assert cancel.lease == assign.lease
        assert "samples 49 instead of 50" in cancel.reason
        assert host.ends() == 0, host.err
    assert "liar: update refused: its result does not match the assignment" in host.err
    with Ledger(bench.folder / "runs" / "lies-001" / "equal") as ledger:
        assert ledger.verify().faults == ()


def test_a_policy_that_weighs_energy_needs_a_meter_unless_told_otherwise(bench: Bench) -> None:
    bench.make_keys("blind")
    experiment = bench.experiment("blind", {"rounds": 2, "budget": 40, "policies": ["energy"]})
    required = bench.host(experiment)
    agent = bench.agent("blind", endpoint_of(required), Declared(active_w=None))

    assert required.ends() == 9, required.err
    assert "no board has a meter; configure [meter] in agent.toml, or set required = false" in required.err

    agent.process.terminate()
    assert agent.ends() == 0
    tolerant = bench.host(experiment, "--set", "energy.required=false")
    bench.agent("blind", endpoint_of(tolerant), Declared(active_w=None))
    assert tolerant.ends() == 0, tolerant.err
    with Ledger(bench.folder / "runs" / "blind-002" / "energy") as ledger:
        assert all(c.compute_uj is None for c in ledger.contributions())
        assert all(row.total_uj is None for row in ledger.energy())
        assert ledger.verify().faults == ()
    assert "unknown" in tolerant.out
