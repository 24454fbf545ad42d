"""``curp status`` prints what others said: on a line, and no more than a part of it."""

from types import SimpleNamespace

from curp._cli.command import main
from curp.v1 import curp_pb2 as pb


def test_what_a_replica_says_cannot_turn_a_line_around(monkeypatch, capsys):
    """Control characters and marks of direction are escaped; a line has an end."""
    said = pb.GroupStatusReply(role="leader", engine="\x1b[31m\u202e\n" + "e" * 100_000)
    group = SimpleNamespace(statuses=lambda: [("127.0.0.1:1", said)], silent={})
    monkeypatch.setattr("curp._cli.status.open_group", lambda *_, **__: group)
    main(["status", "127.0.0.1:1"])
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith(r"  \x1b[31m\u202e\neee")
    assert len(line) < 3000
