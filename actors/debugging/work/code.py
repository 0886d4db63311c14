"""Tasks about code."""

from __future__ import annotations

from actors.debugging.work.task import WORKSPACE, Result, task

CART = '''"""A shopping cart."""


def total(prices, discount=0):
    """Returns the sum of the prices, less a discount in per cent."""
    return sum(prices) - discount


def cheapest(items):
    """Returns the name of the cheapest of the (name, price) pairs; None of none."""
    return min(items, key=lambda item: item[0])[0]


def page(items, number, size):
    """Returns the page with this number, from 1 on."""
    return items[number * size : number * size + size]
'''
CART_TESTS = """import unittest
import cart


class Tests(unittest.TestCase):
    def test_total(self):
        self.assertEqual(cart.total([100, 100], 10), 180)

    def test_cheapest(self):
        self.assertEqual(cart.cheapest([("a", 5), ("b", 2)]), "b")

    def test_page(self):
        self.assertEqual(cart.page([1, 2, 3], 1, 2), [1, 2])
"""
HISTORY = """git init -q repo && cd repo && git config user.email a@b && git config user.name a
for n in $(seq 1 48); do
  echo $n > number; [ $n -ge 29 ] && echo 'print(2 + 3)' > five.py || echo 'print(2 + 2 + 1)' > five.py
  [ $n -ge 37 ] && echo 'print(2 * 3)' > five.py; git add -A; git commit -qm "change $n"
done"""


@task(
    "code",
    "The tests of cart.py fail. Mend cart.py by its docstrings; leave the tests as they are.",
    files={"cart.py": CART, "test_cart.py": CART_TESTS},
)
async def mend_a_module(result: Result) -> None:
    await result.python(
        "import cart\nassert cart.total([50, 50], 50) == 50\nassert cart.total([7]) == 7\n"
        "assert cart.cheapest([('z', 1), ('a', 2)]) == 'z'\nassert cart.cheapest([]) is None\n"
        "assert cart.page(list(range(10)), 4, 3) == [9]"
    )
    assert await result.text(f"{WORKSPACE}/test_cart.py") == CART_TESTS.rstrip("\n"), "the tests were changed"


@task("code", "Write roman.py with functions to_roman(n) and from_roman(text), for 1 to 3999. Raise ValueError else.")
async def write_a_module(result: Result) -> None:
    await result.python(
        "from roman import to_roman, from_roman\nassert to_roman(1994) == 'MCMXCIV'\n"
        "assert all(from_roman(to_roman(n)) == n for n in range(1, 4000))\n"
        "for wrong in (0, 4000, -1):\n    try:\n        to_roman(wrong)\n    except ValueError:\n        continue\n"
        "    raise AssertionError(wrong)\n"
        "for wrong in ('IIII', 'VX', ''):\n    try:\n        from_roman(wrong)\n    except ValueError:\n        "
        "continue\n"
        "    raise AssertionError(wrong)"
    )


@task(
    "code",
    "Rename the function load to load_table in all modules of the folder app, wherever it is defined, imported or "
    "called. Words such as load_all or payload stay.",
    files={
        **{
            f"app/m{n:02}.py": f"from app.base import load\n\npayload = load({n})\n\n\ndef load_all():\n    "
            f"return payload\n"
            for n in range(24)
        },
        "app/base.py": "def load(n):\n    return n * 2\n",
        "app/__init__.py": "",
    },
)
async def rename_a_function(result: Result) -> None:
    await result.python(
        "import importlib\nimport app.base\nassert not hasattr(app.base, 'load')\nassert app.base.load_table(4) "
        "== 8\n"
        "for n in range(24):\n    module = importlib.import_module(f'app.m{n:02}')\n"
        "    assert module.payload == n * 2 == module.load_all()"
    )


@task(
    "code",
    "In the repository `repo`, five.py shall print 5. With which change did it stop to? Answer with its number.",
    setup=HISTORY,
)
async def find_the_change(result: Result) -> None:
    result.says(r"\b37\b")


@task(
    "code",
    "Write stats.py: it reads lines `name=number` from standard input and prints one JSON object with the keys "
    "count, "
    "sum and largest (the name with the largest number). Lines of another form are ignored.",
)
async def write_a_filter(result: Result) -> None:
    command = f"cd {WORKSPACE} && printf 'a=3\\nnothing\\nb=12\\n=\\nc=-4\\nd=x\\n' | python3 -B stats.py | python3 -c "
    await result.prints(f"{command} 'import json, sys; print(sorted(json.load(sys.stdin).items()))'", "[('count', 3), ")
    await result.prints(
        f'{command} \'import json, sys; v = json.load(sys.stdin); print(v["sum"], v["largest"])\'', "11 b"
    )


@task(
    "code",
    "Add a function area(width, height) to shapes.py.",
    files={
        "AGENTS.md": "# Rules of this repository\n\n- Each public function has a docstring.\n"
        "- Each function has a test in test_shapes.py, named test_ and its name.\n- Arguments below 0: ValueError.\n",
        "shapes.py": 'def perimeter(width, height):\n    """Returns the perimeter."""\n    if min(width, height) < 0:\n'
        '        raise ValueError("below 0")\n    return 2 * (width + height)\n',
        "test_shapes.py": "import shapes\n\n\ndef test_perimeter():\n    assert shapes.perimeter(1, 2) == 6\n",
    },
)
async def follow_the_rules_of_a_repository(result: Result) -> None:
    await result.python(
        "import shapes, test_shapes\nassert shapes.area(3, 4) == 12\nassert shapes.area.__doc__\n"
        "test_shapes.test_area()\ntest_shapes.test_perimeter()\ntry:\n    shapes.area(-1, 2)\nexcept "
        "ValueError:\n    pass\n"
        "else:\n    raise AssertionError('no ValueError')"
    )


@task(
    "code",
    "`python3 main.py` ends with an error. Mend its cause, not only what it shows.",
    files={
        "main.py": "from settings import load\nfrom report import title\n\nprint(title(load('team=blue')))\n"
        "print(title(load('')))\nprint(title(load('team=')))\n",
        "settings.py": 'def load(text):\n    """Returns the settings. Without a team it is \'nobody\'."""\n'
        "    pairs = dict(p.split('=') for p in text.split(';'))\n    return {'team': pairs['team']}\n",
        "report.py": "def title(settings):\n    return 'Report of team ' + settings['team'].upper()\n",
    },
)
async def mend_a_cause(result: Result) -> None:
    await result.prints(f"cd {WORKSPACE} && python3 -B main.py", "BLUE\nReport of team NOBODY\nReport of team NOBODY")
    await result.python(
        "from settings import load\nassert load('a=1;team=x') == {'team': 'x'}\nassert load('a=1')['team'] == 'nobody'"
    )
