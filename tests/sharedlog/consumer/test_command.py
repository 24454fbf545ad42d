"""``sharedlog consumers`` says who has what (DESIGN-LOG §14)."""

import json

from sharedlog._cli import ExitCode, main
from sharedlog.testing import drain, driven
from tests.sharedlog.consumer.world import World


def told(capsys, *arguments):
    assert main(["consumers", *arguments, "--json"]) == ExitCode.DONE
    return json.loads(capsys.readouterr().out)


def test_the_command_shows_shards_and_resumes_them(tmp_path, capsys):
    """Owner, fence, position, lag; what is stopped and why; and it goes on when told to (T5)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    world = World(tmp_path, orders=3, attempts=1, url=url)
    assert told(capsys, url) == []
    with driven(world.consumer()) as process:
        process.drain()
        rows = told(capsys, url)
        assert [(each["substream"], each["state"], each["fence"]) for each in rows] == [
            ("orders/0", "runs", 1),
            ("orders/1", "runs", 1),
        ]
        assert all(" on " in each["process"] for each in rows)
    world.refused = {"c1"}
    world.order(3)
    drain(world.consumer())
    rows = told(capsys, url)
    (stopped,) = [each for each in rows if each["state"] == "stopped"]
    assert "c1 is not billed" in stopped["why"]
    assert stopped["process"] is None
    assert stopped["entries_behind"] > 0
    assert main(["consumers", url]) == ExitCode.DONE
    assert "c1 is not billed" in capsys.readouterr().out
    assert told(capsys, url, "--resume", "billing") == {"resumed": [stopped["substream"]]}
    assert main(["consumers", url, "--resume", "nobody"]) == ExitCode.NOT_FOUND
    world.refused = set()
    drain(world.consumer())
    world.check()
    world.log.close()
