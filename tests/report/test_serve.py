"""The page on loopback: it follows a run, and serves nothing else and nobody else."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request

import pytest
import yaml
from page_results import write_measurement, write_run

from decondense.report.serve import server


def test_the_page_follows_a_run_while_it_trains(tmp_path):
    with server([tmp_path]) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{running.server_port}"

        def get(path, **headers):
            with urllib.request.urlopen(urllib.request.Request(home + path, headers=headers), timeout=30) as answer:
                return answer.read().decode()

        empty = get("/stamp")
        assert "No result yet" in get("/")
        record = write_run(tmp_path / "run", layers=3, steps=20, snapshots=(0, 10))
        (tmp_path / "run" / "result.json").unlink()
        (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(record["recipe"]))
        begun = get("/stamp")
        page = get("/")
        assert begun != empty
        assert f"data-stamp={begun}" in page
        assert "the last snapshot is of step 10" in page
        assert "connect-src &#39;self&#39;" in page
        write_run(tmp_path / "run", layers=3, steps=20, snapshots=(0, 10, 20))
        assert get("/stamp") != begun
        assert "the last snapshot" not in get("/")
        write_measurement(tmp_path / "m", layers=3)
        assert "1 measurement" in get("/")
        for path, headers, code in (("/recipe.yaml", {}, 404), ("/", {"Host": "evil.example"}, 403)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(path, **headers)
            assert refused.value.code == code
        running.shutdown()
