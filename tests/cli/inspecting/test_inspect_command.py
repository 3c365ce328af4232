"""The command `rails-ray inspect`."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray.cli.inspect import remarks
from rails_ray.cli.inspecting import baselines
from rails_ray.cli.main import main
from rails_ray.families import advising
from rails_ray.families.running import begin
from rails_ray.storage.filesystem import Storage
from support.data_folders import real_data, write_number_data, write_sequence_data, write_text_data, write_vector_data
from support.inspected import SPLITS, change, into_two_files, looked, setting, strangers
from support.sessions import NUM_SESSIONS, sessions_config, write_sessions

# the command


def test_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    assert main(["inspect", str(folder), "--no-timing"]) == 0
    text = capsys.readouterr().out
    for part in ("60", "relevance", "baseline-bm25", "text-solar", "what there is to beat", "words of an item"):
        assert part in text
    assert "problem:" not in text
    assert "what it takes" not in text


def test_the_command_times_recipes_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sequence_data(tmp_path / "data")
    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "what it takes" in text
    assert "35,000 of " in text
    assert "times are of one worker with one thread" in text


def test_a_mixture_is_compared_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advising, "MOST_STEPS", 3)
    folder = write_sequence_data(tmp_path / "data")
    arguments = ["inspect", str(folder), "--no-timing", "--compare"]
    assert main([*arguments, "ml1m-sasrec-mol", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["compared"]
    assert found["sentence"].startswith("mixture or dot product: after 3 of 3,780 steps each, HR@10 on 30 validation")
    assert found["num_queries"] == 30
    for recipe, got in (
        ("ml1m-sasrec", "a recipe with a mixture of trained components, stored as floats, got ml1m-sasrec"),
        ("vectors-gated", "stored as floats, got vectors-gated"),
        ("text-mol", "a recipe that fits the data, got text-mol: the data lack"),
        ("nope", "recipe must be one of"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(baselines, "popularity", None)  # it is refused before anything is measured
            assert main([*arguments, recipe]) == 2
        assert got in capsys.readouterr().err


def test_problems_are_shown_in_place_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sequence_data(tmp_path / "data")
    pq.write_table(pq.read_table(folder / "items.parquet").drop_columns(["item_id"]), folder / "items.parquet")
    assert main(["inspect", str(folder), "--no-timing", "--json", "--compare", "ml1m-sasrec-mol"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "must have a column 'item_id'" in found["problems"][0]
    assert found["compared"] is None


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_number_data(tmp_path / "data", "features")
    assert main(["inspect", str(folder), "--no-timing", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(looked(folder, num_sampled=10_000)))
    assert found["tables"]["items"] == {
        "files": 1,
        "rows": 24,
        "bytes": (folder / "items.parquet").stat().st_size,
        "columns": ["item_id"],
    }
    assert [one["name"] for one in found["baselines"]] == ["popularity"]


def test_tables_in_places_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    into_two_files(folder, "items")
    (folder / "items").rename(tmp_path / "elsewhere")
    arguments = ["inspect", "--json", "--no-timing"]
    for table in ("queries", "relevance"):
        arguments += [f"--{table}", str(folder / f"{table}.parquet")]
    assert main([*arguments, "--items", str(tmp_path / "elsewhere" / "*.parquet")]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["items"]["files"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give the folder of a data set, or --items and the places of its other tables, got none"),
        (["EMPTY"], 1, "must hold a table of items, queries, relevance, interactions, users, got none"),
        (["EMPTY", "--sample", "0"], 2, "--sample must be at least 1, got 0"),
        (["ftp://bucket/x"], 2, "az://container/prefix or gs://bucket/prefix, got ftp://"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *[str(tmp_path) if word == "EMPTY" else word for word in arguments]]) == code
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


def test_problems_are_printed_and_exit_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    change(folder, "relevance", strangers("item_id"))
    change(folder, "queries", setting("split", 1, "holdout"))
    assert main(["inspect", str(folder), "--no-timing"]) == 1
    out, errors = capsys.readouterr()
    assert (
        f"problem: column 'item_id' of {folder}/relevance.parquet must hold ids of {folder}/items.parquet, got" in out
    )
    assert "problem: column 'split' of" in out
    assert errors == f"rails-ray: {folder} must be data that training takes, got 2 problems\n"


def test_what_training_does_not_refuse_is_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    split = [{"valid": "train"}.get(own, own) for own in pq.read_table(folder / "queries.parquet")["split"].to_pylist()]
    change(folder, "queries", lambda found: found.drop_columns(["split"]).append_column("split", pa.array(split)))
    change(folder, "relevance", lambda found: found.filter(pa.compute.not_equal(found["query_id"], 0)))
    assert main(["inspect", str(folder), "--no-timing"]) == 0
    text = capsys.readouterr().out
    assert "no query has split valid: every tenth training query is held out" in text
    assert "1 of 77 queries have no relevant item and are left out" in text


def test_vectors_that_are_zero_are_refused_or_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_vector_data(tmp_path / "data")
    change(folder, "items", setting("vector", 3, [0.0] * 7))
    assert main(["inspect", str(folder), "--no-timing"]) == 1
    got = "got zeros for 1 of 60, the first of them 'item-3'"
    assert got in capsys.readouterr().out
    assert main(["inspect", str(folder), "--no-timing", "--zero-vectors", "keep"]) == 0
    assert "1.67% of the vectors of items are zero: items are found last, queries refused" in capsys.readouterr().out
    for table in ("queries", "relevance"):
        (folder / f"{table}.parquet").unlink()
    [problem] = looked(folder)["problems"]
    assert got in problem


def test_weights_of_training_pairs_are_shown_by_their_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_text_data(tmp_path / "data")
    change(folder, "relevance", lambda found: found.append_column("grade", pa.array(np.arange(len(found)) % 3)))
    assert looked(folder)["facts"]["text"].get("weights") is None
    assert main(["inspect", str(folder), "--no-timing", "--columns", "weight=grade"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "weights of training pairs column grade: min 0, mean" in text
    assert ", max 2; " in text
    assert "pairs of a query and an item must count alike to train text-solar" in text


def test_weights_that_are_no_weights_are_one_of_several_problems(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    change(folder, "relevance", lambda found: found.append_column("weight", pa.array([-1.0] * len(found))))
    change(folder, "queries", setting("split", 3, "other"))
    problems = looked(folder)["problems"]
    assert any("'split'" in problem for problem in problems)
    assert any("'weight' of" in problem and "got -1.0 in row 0" in problem for problem in problems)


def test_users_that_test_nothing_and_items_that_answer_nothing_are_remarked(tmp_path: Path) -> None:
    folder = write_sequence_data(tmp_path / "data")
    users = pq.read_table(folder / "interactions.parquet")["user_id"].to_pylist()
    is_kept = [user != "user-0" or number < 2 for number, user in enumerate(users)]
    change(folder, "interactions", lambda found: found.filter(pa.array(is_kept)))
    assert "1 users have 2 interactions: they train, and test nothing" in remarks(looked(folder))
    is_kept = [user != "user-0" or number < 1 for number, user in enumerate(users)]
    folder = write_sequence_data(tmp_path / "data")
    change(folder, "interactions", lambda found: found.filter(pa.array(is_kept)))
    assert "1 users have 1 interaction: they neither train nor test" in remarks(looked(folder))
    texts = write_text_data(tmp_path / "texts")
    change(texts, "relevance", lambda found: found.filter(pa.compute.not_equal(found["item_id"], "item-7")))
    change(texts, "queries", lambda found: found.set_column(1, "text", pa.array(["same"] * len(found))))
    found = remarks(looked(texts))
    assert "1 of 60 items answer no query of any split" in found
    assert "100.0% of the test queries have the text of a training query" in found


def test_ties_everywhere_and_duplicates_are_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sequence_data(tmp_path / "data")
    day = pa.array([1_700_000_000_000] * pq.read_metadata(folder / "interactions.parquet").num_rows)  # milliseconds
    change(folder, "interactions", lambda found: found.drop_columns(["position"]).append_column("timestamp", day))
    assert main(["inspect", str(folder), "--no-timing"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "note: interactions: column 'timestamp' is read as milliseconds, by its size" in text
    assert "the last two of 30 of 30 users have one timestamp, so that the order of the rows decides" in text
    assert (
        "all interactions of a user have the same timestamp, so that only the order of the rows orders a history"
        in text
    )
    assert "ties, which decide 30 of 30 test items" in text
    num_repeats = looked(folder)["facts"]["history"]["histories"]["num_repeats"]
    assert num_repeats
    assert f"{num_repeats} interactions have user, item and timestamp of an earlier one: leave them out, or" in text


@pytest.mark.parametrize(("split", "place"), [("valid", 5), ("test", 6)])
def test_held_out_items_that_are_all_in_their_histories(
    split: str, place: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_sessions(tmp_path / "data", num_repeated=0)
    items = np.array(pq.read_table(folder / "interactions.parquet")["item_id"]).reshape(NUM_SESSIONS, -1)
    items[:, place] = items[:, place - 1]
    change(folder, "interactions", lambda found: found.set_column(1, "item_id", pa.array(items.ravel())))
    sentence = (
        f"split {split} must have a relevant item that is not in its query's history, got 50, all in it: add "
        "--no-exclude-seen, so that answers may hold items of the history"
    )
    found = looked(folder)
    assert found["recipes"]["ml1m-sasrec"] == {"fits": False, "why": sentence}
    assert found["facts"]["history"]["histories"]["num_seen_tests"] == (NUM_SESSIONS if split == "test" else 0)
    assert main(["inspect", str(folder), "--no-timing", "--json", "--no-exclude-seen"]) == 0
    assert json.loads(capsys.readouterr().out)["recipes"]["ml1m-sasrec"]["fits"]
    storage = Storage(str(tmp_path / "storage"))
    with pytest.raises(
        ValueError, match=f"split {split} must have a relevant item that is not in its query's history, got 50"
    ):
        begin(sessions_config(folder), storage)
    assert begin(sessions_config(folder, exclude_seen=False), storage).pieces


def test_sessions_and_columns_without_a_use_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sequence_data(tmp_path / "data")
    users = pq.read_table(folder / "interactions.parquet")["user_id"].to_pylist()
    is_kept = [user != "user-0" or number < 2 for number, user in enumerate(users)]
    change(folder, "interactions", lambda found: found.rename_columns(["session_id", "item_id", "position"]))
    change(folder, "interactions", lambda found: found.filter(pa.array(is_kept)))
    change(folder, "items", lambda found: found.append_column("price", pa.array([0.5] * len(found))))
    assert main(["inspect", str(folder), "--no-timing"]) == 0
    text = capsys.readouterr().out
    assert f"{sum(is_kept)} interactions of 30 sessions" in text
    assert "of all pairs of a session and an item" in text
    assert "1 sessions have 2 interactions: they train, and test nothing" in text
    assert "note: interactions: column 'session_id' is read as user_id, so that a user is a session\n" in text
    sentence = "note: items: price (float) is not stored: --data.attributes price stores it\n"
    assert text.count(sentence) == 1
    change(folder, "interactions", lambda found: found.append_column("user_id", found["session_id"]))
    assert main(["inspect", str(folder), "--no-timing"]) == 0
    assert "user_id is read, not session_id: --data.columns user_id=session_id reads" in capsys.readouterr().out
    assert main(["inspect", str(folder), "--no-timing", "--columns", "user_id=session_id"]) == 0
    assert "of 30 sessions" in capsys.readouterr().out


@pytest.mark.long
def test_a_data_set_on_s3(s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    for path in folder.glob("*.parquet"):
        Storage(s3).write(f"mine/{path.name}", path.read_bytes())
    assert main(["inspect", f"{s3}/mine", "--json", "--no-timing"]) == 0
    found, local = json.loads(capsys.readouterr().out), looked(folder, num_sampled=10_000)
    assert found.pop("folder") == f"{s3}/mine"
    for key in ("folder", "try_first"):  # both name the folder
        local.pop(key)
        found.pop(key, None)
    assert found == json.loads(json.dumps(local))


RUN = """
import sys
from rails_ray.cli.main import main
code = main(["inspect", *sys.argv[1:]])
assert "ray" not in sys.modules
sys.exit(code)
"""


def test_the_command_imports_no_ray(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    arguments = [sys.executable, "-c", RUN, str(folder), "--no-timing"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LIMITED = """
import resource, sys
from rails_ray.cli.main import main
resource.setrlimit(resource.RLIMIT_DATA, (2**20 * int(sys.argv[1]),) * 2)
code = main(["inspect", *sys.argv[2:]])
sys.exit(code)
"""


@pytest.mark.long
def test_two_million_items_take_bounded_memory(tmp_path: Path) -> None:
    """BM25 keeps 3 KB of each of its 200,000 items, twice while it puts them together; ids and hashes take the rest.

    The kernel holds it to that: a mapped file does not count, stacks of threads do. With 3,000 MB it fails.
    """
    num_items, num_queries, rng = 2_000_000, 3_000, np.random.default_rng(0)
    vocabulary = np.array([f"word{number}" for number in range(5000)])
    (tmp_path / "items").mkdir()
    for number in range(4):
        ids = np.arange(number * num_items // 4, (number + 1) * num_items // 4)
        texts = [" ".join(own) for own in vocabulary[rng.integers(5000, size=(len(ids), 8))]]
        pq.write_table(pa.table({"item_id": ids, "text": texts}), tmp_path / "items" / f"{number}.parquet")
    queries = {
        "query_id": range(num_queries),
        "text": [" ".join(own) for own in vocabulary[rng.integers(5000, size=(num_queries, 4))]],
        "split": np.repeat(SPLITS, num_queries // 3),
    }
    relevance = {"query_id": range(num_queries), "item_id": rng.integers(num_items, size=num_queries)}
    pq.write_table(pa.table(queries), tmp_path / "queries.parquet")
    pq.write_table(pa.table(relevance), tmp_path / "relevance.parquet")
    arguments = [sys.executable, "-c", LIMITED, "3600", str(tmp_path), "--no-timing"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "200,000 of 2,000,000" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "reading", "num_items", "baseline"),
    [
        ("tldr", "text", 7_424, "baseline-bm25"),
        ("scifact", "text", 5_183, "baseline-bm25"),
        ("ml-1m", "history", 3_706, "popularity"),
        ("delicious", "features", 983, "popularity"),
    ],
)
def test_real_data(name: str, reading: str, num_items: int, baseline: str) -> None:
    found = looked(str(real_data(name)))
    assert list(found["facts"]) == [reading]
    assert found["facts"][reading]["items"]["num"] == num_items
    assert found["problems"] == []
    [one] = found["baselines"]
    assert one["name"] == baseline
    assert 0 < one["hit_rate"]["1"] <= one["hit_rate"]["10"] < 1


def test_timestamps_do_for_positions() -> None:
    found = looked(str(real_data("ml-100k")))
    assert found["readings"]["history"]["lacks"] == []
    assert found["problems"] == []
    assert list(found["facts"]) == ["history"]


def test_data_that_lack_a_column(tmp_path: Path) -> None:
    folder = write_sequence_data(tmp_path)
    table = pq.read_table(folder / "interactions.parquet").drop_columns(["position"])
    pq.write_table(table, folder / "interactions.parquet")
    found = looked(str(folder))
    assert found["readings"]["history"]["lacks"] == ["interactions.position"]
    [sentence] = found["problems"]
    assert sentence.endswith(
        "interactions.parquet must have a column 'position', got user_id, item_id: rename one of "
        "them, or train with --data.columns position=COLUMN"
    )
