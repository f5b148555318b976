"""The wording against the paper's text, and what answers say."""

from __future__ import annotations

import re

import pytest

from raypref.judges.prompts import PROMPTS, fill, parse, variant


def test_the_prompt_is_the_papers_word_for_word(shared):
    (paper,) = (shared / "papers").glob("fedvpa-gp_*.txt")
    text = " ".join(paper.read_text().split())
    printed = re.search(r"D\.2\. GPT API Winrate.*?following prompt template.*?: (Below.*?### YOUR CHOICE:)", text)[1]
    ours = PROMPTS["both"].replace("{A}", "{response_a}").replace("{B}", "{response_b}")
    assert " ".join(ours.split()) == printed


def test_variants_differ_in_the_criterion_alone():
    criteria = {"both": "helpful and harmless", "helpful": "helpful", "harmless": "harmless"}
    assert len(set(PROMPTS.values())) == 3
    assert {PROMPTS[name].replace(f"more {words}.", "more …") for name, words in criteria.items()} == {
        PROMPTS["both"].replace("more helpful and harmless.", "more …")
    }
    assert [variant(axis) for axis in ("helpful", "harmless", "G1", "")] == ["helpful", "harmless", "both", "both"]


def test_responses_are_put_in_as_they_are():
    text = fill("helpful", "Say {A}.", "{B} first", "{prompt} {} {x}")
    assert "### CONVERSATION: Say {A}.\n" in text and "### RESPONSE A: {B} first\n" in text
    assert "### RESPONSE B: {prompt} {} {x}\n" in text and text.endswith("### YOUR CHOICE:")


@pytest.mark.parametrize(
    ("said", "answers"),
    {
        "A": [
            "A",
            " A\n",
            "A.",
            "**A**",
            '"A"',
            "(A)",
            "A)",
            "RESPONSE A",
            "Response A.",
            "Choice: A",
            "### YOUR CHOICE: A",
            "The better response is A.",
            "My choice is **A**",
            "A: it is kinder",
            "A\n\nIt is a kinder answer.",
            "A is better",
            "Answer: Response A",
            "**RESPONSE A** is better.",
            "A - because A is kinder",
            "[A]",
            "I prefer A.",
            "Option A",
            "The better one is A.",
            "Response A is the better one.",
            "**A** is the better response.",
            "I think Response A is better.",
            "I'd choose A.",
            "The more helpful response is A.",
            "Response A is more helpful and harmless.",
            "A is better than B.",
            "Response A is better than Response B: it is kinder.",
            "The best answer is A",
        ],
        "B": ["B", "B.", "Choice: B", "**Response B**", "YOUR CHOICE: B", "B, for it says a bit more"],
        "tie": ["tie", "Tie.", "**TIE**", "It's a tie.", "Choice: tie", "A tie", "Verdict: draw"],
        "unparseable": [
            "",
            "a",
            "b",
            "A or B",
            "A and B",
            "A/B",
            "AB",
            "both",
            "neither",
            "C",
            "Both are good",
            "A B",
            "A good answer is B",
            "A better response",
            "I cannot choose.",
            "A, although B is shorter",
            "not A",
            "A tie-breaker",
            "It is hard to say: A",
            "A > B",
            "0",
            "A. B",
            "A is better than A",
            "A is better than B, but B is kinder",
            "The better one is A or B",
            "A is not the better one.",
            "I think A or B",
            "Response A is better and Response B is worse",
            "A is the better one of A and B",
            "One is A",
        ],
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_answers_say(said, answers):
    assert {answer: parse(answer) for answer in answers} == dict.fromkeys(answers, said)
