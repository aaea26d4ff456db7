"""Tool search: results, ranking and robustness."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pace import limited_work

from registry.search.index import SearchHit, SearchIndex
from registry.search.terms import configured_expansions, general_expansions, split_words, stem, terms


@dataclass(frozen=True)
class Shown:
    """A tool as a view shows it."""

    name: str
    server: str
    tool: str
    definition: Mapping[str, Any] = field(default_factory=dict)


def searchable(server: str, tool: str, description: str = "", *arguments: str, **more: Any) -> Shown:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in arguments}}
    return Shown(f"{server}__{tool}", server, tool, {"description": description, "inputSchema": schema, **more})


TOOLS = (
    searchable("post", "send_email", "Send a message to recipients.", "to", "subject", "body"),
    searchable("post", "list_emails", "List what is in a folder.", "folder"),
    searchable("post", "delete_email", "Delete a message.", "id"),
    searchable("code", "createPullRequest", "Open a pull request on GitHub.", "base", "head"),
    searchable("code", "create_issue", "Open an issue.", "title", "body"),
    searchable("code", "list_issues", "List issues with filters.", "state"),
    searchable("bank", "get_balance", "The balance of an account.", "account_id"),
    searchable("bank", "get_transactions", "What was booked.", "account_id", "since"),
    searchable("files", "create_directory", "Make a place for files.", "path"),
    searchable("files", "read_text_file", "Give a file's content.", "path"),
)
INDEX = SearchIndex(TOOLS)
queries = st.one_of(
    st.text(max_size=200),
    st.text(alphabet="\"*()^:+-~{}[]\\\x00 \n'%_;ANDORNOTNEARé日本🚀\u202e\ud800abc", max_size=200),
    st.lists(st.sampled_from(["send", "email", "NEAR(a,", '"', "issue", "list", "OR", "🚀", "*"])).map(" ".join),
)


def names(query: str, limit: int = 3, index: SearchIndex = INDEX) -> list[str]:
    return [hit.name for hit in index.search(query, limit)]


def first(query: str, index: SearchIndex = INDEX) -> str | None:
    return next(iter(names(query, 1, index)), None)


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("send email", "post__send_email"),
        ("sending emails", "post__send_email"),
        ("SendEmail", "post__send_email"),
        ("send-e-mail", "post__send_email"),
        ("pull request", "code__createPullRequest"),
        ("pullrequest", "code__createPullRequest"),
        ("create_pull_request", "code__createPullRequest"),
        ("PR", "code__createPullRequest"),
        ("directories", "files__create_directory"),
        ("Líst îssues", "code__list_issues"),
        ("Li\u0301st i\u0302ssues", "code__list_issues"),
        ("transact", "bank__get_transactions"),
        ("isssue list", "code__list_issues"),
    ],
)
def test_word_is_found_in_any_inflection(query: str, best: str) -> None:
    assert first(query) == best


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("erase mail", "post__delete_email"),
        ("new folder", "files__create_directory"),
        ("open a ticket", "code__create_issue"),
        ("how much money do I have", "bank__get_balance"),
    ],
)
def test_synonym_finds_the_tool(query: str, best: str) -> None:
    assert first(query) == best


def test_siblings_are_distinguished_by_their_differing_word() -> None:
    assert first("list emails") == "post__list_emails"
    assert first("delete an email") == "post__delete_email"
    assert first("create issue") == "code__create_issue"


def test_tool_whose_name_has_extra_words_ranks_lower() -> None:
    index = SearchIndex(
        [
            searchable("work", "remove_tag_from_task", "Remove a tag from a task."),
            searchable("work", "remove_tag", "Remove a tag."),
            searchable("work", "remove_task", "Remove a task."),
        ]
    )
    assert first("remove a tag", index) == "work__remove_tag"
    assert first("remove a task", index) == "work__remove_task"
    assert first("remove the tag from this task", index) == "work__remove_tag_from_task"


def test_ties_between_siblings_are_broken_by_argument_names() -> None:
    index = SearchIndex(
        [searchable("a", "lookup", "Look it up.", "city"), searchable("b", "lookup", "Look it up.", "postcode")]
    )
    assert first("lookup by postcode", index) == "b__lookup"
    assert first("lookup by city", index) == "a__lookup"


def test_equal_scores_are_ordered_by_name() -> None:
    index = SearchIndex([searchable(server, "echo", "Say it again.") for server in ("c", "a", "b")])
    assert names("echo", 3, index) == ["a__echo", "b__echo", "c__echo"]


def test_server_name_and_alias_find_its_tools() -> None:
    index = SearchIndex([searchable("gh", "list", ""), searchable("gl", "list", "")], aliases={"gl": "Company Forge"})
    assert first("list gh", index) == "gh__list"
    assert first("list in the forge", index) == "gl__list"


def test_named_server_ranks_above_others_with_similar_tools() -> None:
    index = SearchIndex(
        [
            searchable("papers", "retrieve_sheet", "Retrieve a sheet."),
            searchable("base", "read_document", "Read a document with the text of its paragraphs."),
        ]
    )
    assert first("read the text of a document", index) == "base__read_document"
    assert first("read a sheet's text in papers", index) == "papers__retrieve_sheet"


def test_renamed_tool_is_found_by_its_original_name() -> None:
    index = SearchIndex([Shown("bank__money", "bank", "fetch_ledger", {}), searchable("bank", "other")])
    assert first("ledger", index) == "bank__money"


def test_titles_and_enum_values_are_searched() -> None:
    schema = {"properties": {"mode": {"enum": ["drain", "cordon", 3]}, "odd": True}}
    index = SearchIndex(
        [
            searchable("x", "one", title="Weekly report"),
            Shown("x__two", "x", "two", {"annotations": {"title": "Ledger"}}),
            Shown("x__three", "x", "three", {"inputSchema": schema}),
        ]
    )
    assert [first(query, index) for query in ("weekly", "ledger", "cordon")] == ["x__one", "x__two", "x__three"]


def test_configured_synonyms_work_both_ways_and_beside_general_ones() -> None:
    index = SearchIndex(TOOLS, synonyms={"kontostand": ["balance"], "Change Proposal": ["pull request"]})
    assert first("Kontostand", index) == "bank__get_balance"
    assert first("change proposal", index) == "code__createPullRequest"
    assert first("erase mail", index) == "post__delete_email"
    assert first("kontostand") is None
    assert SearchIndex(TOOLS, thesaurus=False, similar_words=False).search("erase", 3) == []


def test_exact_word_outranks_its_synonym() -> None:
    index = SearchIndex([searchable("a", "erase_note"), searchable("b", "delete_note")])
    assert first("erase note", index) == "a__erase_note"
    assert first("delete note", index) == "b__delete_note"


def test_query_of_stop_words_only_is_searched_literally() -> None:
    index = SearchIndex([searchable("x", "whoami"), searchable("x", "use"), searchable("x", "other")])
    assert first("who am I", index) == "x__whoami"
    assert first("use", index) == "x__use"


def test_polite_phrases_are_ignored() -> None:
    assert (
        first("Hi! Could you please help me with a tool that lets me send an email to somebody?") == "post__send_email"
    )


@pytest.mark.parametrize("query", ["", "   ", "\x00", '"', "* (", "the a of", "🚀🚀", "qqqqqqqq xxxxyyyy"])
def test_query_without_words_finds_nothing(query: str) -> None:
    assert INDEX.search(query, 5) == []


@pytest.mark.parametrize(
    "query", ['send "email', "send AND email*", "name:send email", "send\x00email", "NEAR(send email)"]
)
def test_query_syntax_is_treated_as_words(query: str) -> None:
    assert first(query) == "post__send_email"


def test_scripts_without_spaces_are_searched_by_character_pairs() -> None:
    index = SearchIndex([searchable("x", "one", "电子邮件发送给收件人"), searchable("x", "two", "获取账户余额")])
    assert first("发送邮件", index) == "x__one"
    assert first("余额", index) == "x__two"


@given(queries, st.integers(-3, 30))
def test_any_query_returns_distinct_ordered_hits_within_the_limit(query: str, limit: int) -> None:
    hits = INDEX.search(query, limit)
    assert len(hits) <= max(limit, 0)
    assert len({hit.name for hit in hits}) == len(hits)
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.name))
    assert all(hit.score > 0 for hit in hits)


@given(queries, st.permutations(TOOLS))
def test_tool_order_does_not_affect_results(query: str, tools: list[Shown]) -> None:
    assert SearchIndex(tools).search(query, 10) == INDEX.search(query, 10)


@given(queries, st.integers(0, 10), st.integers(0, 10))
def test_smaller_limit_returns_a_prefix_of_the_results(query: str, one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    assert INDEX.search(query, fewer) == INDEX.search(query, more)[:fewer]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    ),
    st.sampled_from(["description", "title", "inputSchema", "annotations"]),
)
def test_index_is_built_from_any_definition(value: Any, key: str) -> None:
    odd = Shown("odd__tool", "odd", "tool", {key: value})
    properties = Shown(
        "odd__other", "odd", "other", {"inputSchema": {"properties": {"a": value, "b": {"enum": value}}}}
    )
    assert len(SearchIndex([odd, properties])) == 2
    assert "odd__tool" in names("odd", 5, SearchIndex([odd, properties]))


def test_empty_index_finds_nothing() -> None:
    assert SearchIndex([]).search("send email", 5) == []


def test_hit_has_name_and_score() -> None:
    [hit] = INDEX.search("balance", 1)
    assert hit == SearchHit("bank__get_balance", hit.score)


def unknown_words(count: int) -> str:
    return " ".join("".join(chr(97 + at * step % 26) for step in (3, 5, 7, 11, 17)) for at in range(1, count))


@pytest.mark.parametrize(
    "query",
    [
        "send " * 200_000,
        "x" * 1_000_000,
        "aA" * 500_000,
        "日本語" * 300_000,
        unknown_words(500),
        "-" * 1_000_000,
        "a-" * 9_999,
    ],
    ids=["one word", "one run", "humps", "no spaces", "unknown", "hyphens", "compounds"],
)
def test_search_time_of_a_hostile_query_is_bounded(query: str) -> None:
    many = SearchIndex([searchable(f"server{at}", f"{one.tool}_{at}") for at in range(100) for one in TOOLS])
    with limited_work(0.5):
        # It takes 20 ms. The bound detects costs that grow with the text.
        assert len(many.search(query, 10)) <= 10


def test_indexing_time_of_a_hostile_definition_is_bounded() -> None:
    schema = {
        "properties": {f"p{at}": {"description": "word " * 10_000, "enum": ["v" * 10_000] * 500} for at in range(500)}
    }
    with limited_work(1):
        index = SearchIndex([Shown("a__b", "a", "b", {"description": "endless " * 500_000, "inputSchema": schema})])
    assert first("endless", index) == "a__b"


def test_threads_share_an_index() -> None:
    seen: list[list[SearchHit]] = []
    threads = [threading.Thread(target=lambda: seen.append(INDEX.search("send an email", 5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(seen) == 8
    assert all(hits == seen[0] for hits in seen)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("send_email", [("send",), ("email",)]),
        ("sendEMailNow", [("send", "e", "mail", "now")]),
        ("HTTPServer2Go", [("http", "server2", "go")]),
        ("API-get-user", [("api",), ("get",), ("user",)]),
        ("base64", [("base64",)]),
        ("straße Ñandú", [("strasse",), ("nandu",)]),
        ("日本語", [("日本",), ("本語",)]),
        ("", []),
    ],
)
def test_identifiers_are_split_into_words(text: str, parts: list[tuple[str, ...]]) -> None:
    assert list(split_words(text)) == parts


def test_name_in_prose_is_also_kept_whole() -> None:
    assert terms("On GitHub, with issueId", 9, prose=True) == ["github", "issueid", "issu", "id"]


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("agreed", "agre"), ("plastered", "plaster"), ("sing", "sing"),
        ("hopping", "hop"), ("filing", "file"), ("happy", "happi"), ("sky", "sky"), ("relational", "relat"),
        ("conditional", "condit"), ("digitizer", "digit"), ("electrical", "electr"), ("hopefulness", "hope"),
        ("adjustment", "adjust"), ("adoption", "adopt"), ("controlling", "control"), ("generalizations", "gener"),
        ("rate", "rate"), ("cease", "ceas"), ("is", "is"), ("日本", "日本"), ("b2b", "b2b"),
    ],
)  # fmt: skip
def test_words_are_stemmed_as_porter_specifies(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


@given(st.text(max_size=60))
def test_stem_is_never_longer_than_the_word(word: str) -> None:
    assert len(stem(word)) <= len(word)


def test_synonym_never_maps_to_itself_and_weighs_less_than_the_word() -> None:
    for key, targets in general_expansions().items():
        assert (*targets,) != (), key
        assert all(key != (target,) and 0 < weight < 1 for target, weight in targets.items()), key


def test_configured_synonyms_accept_any_content() -> None:
    assert configured_expansions({"": ["", " "], "one": [], "A-b": ["cD", "e"]})[("e",)] == {"ab": 1.0, "cd": 1.0}


@settings(max_examples=50)
@given(st.dictionaries(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=4), max_size=4), queries)
def test_any_synonyms_leave_search_working(synonyms: dict[str, list[str]], query: str) -> None:
    assert len(SearchIndex(TOOLS, synonyms=synonyms).search(query, 3)) <= 3


def test_similar_word_finds_a_tool() -> None:
    tools = (searchable("media", "find_video", "Find a video."), searchable("media", "find_song", "Find a song."))
    assert names("clips", 1, SearchIndex(tools, thesaurus=False)) == ["media__find_video"]
    assert SearchIndex(tools, thesaurus=False, similar_words=False).search("clips", 1) == []


def test_exact_word_outranks_a_similar_one() -> None:
    tools = (searchable("one", "video"), searchable("two", "clip"), searchable("three", "videos"))
    assert names("clip", 3, SearchIndex(tools))[0] == "two__clip"


def test_tool_without_matching_words_is_found_by_meaning() -> None:
    tools = (
        searchable("sky", "get_forecast", "Temperature, wind and precipitation of the coming days at a place."),
        searchable("sky", "list_stations", "List measuring stations of a region."),
        searchable("desk", "print_document", "Send a document to a printer."),
    )
    index = SearchIndex(tools, thesaurus=False)
    assert names("should I bring an umbrella tomorrow", 1, index) == ["sky__get_forecast"]
    silent = SearchIndex(tools, thesaurus=False, similar_words=False)
    assert silent.search("should I bring an umbrella tomorrow", 1) == []


def test_model_similarities_are_merged_into_the_ranking() -> None:
    query = "zqzqzq"
    assert INDEX.search(query, 3) == []
    near = {"bank__get_balance": 0.6, "files__read_text_file": 0.4, "post__send_email": 0.1, "elsewhere__tool": 0.9}
    found = INDEX.search(query, 3, similarities=near)
    assert [hit.name for hit in found] == ["bank__get_balance", "files__read_text_file"]
    assert names("send email", 1) == [INDEX.search("send email", 1, similarities=near)[0].name]


@given(queries, st.dictionaries(st.sampled_from([tool.name for tool in TOOLS]), st.floats(-1, 1)))
def test_any_similarities_leave_search_working(query: str, near: dict[str, float]) -> None:
    fewer, more = INDEX.search(query, 3, similarities=near), INDEX.search(query, 10, similarities=near)
    assert more[:3] == fewer
    assert len({hit.name for hit in more}) == len(more)
