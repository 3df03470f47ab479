"""What an exercise may try instead of answering: each way fails, with a line that says what it did.

Each is graded by `pytest lessons/` in a process of its own, as a teacher would.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from solutions import COURSE, as_submission, key_text

from minipaged.course.manifest import Lesson

LESSON = COURSE.find("3")
START = LESSON.exercise_path.read_text()
KEY = as_submission(LESSON, key_text(LESSON))


def grade(file: Path, *options: str, lesson: Lesson = LESSON) -> tuple[int, str]:
    """Grade a file as a lesson's exercise: the exit code, and what was printed, in one line."""
    return run([sys.executable, "-m", "pytest", str(lesson.path), f"--submission={file}", *options])


def run(command: list[str], folder: Path | None = None) -> tuple[int, str]:
    """Run a command in a folder: the exit code, and what was printed, in one line."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)
    return ended.returncode, " ".join((ended.stdout + ended.stderr).split())


def answering(body: str) -> str:
    """The exercise with `body` in place of the first body to be written."""
    return START.replace("        raise NotImplementedError", body, 1)


CHEATS = {
    "exit": (
        START + "\nimport os\nos._exit(0)\n",
        "ended the process that grades with exit code 0: no report is a failure",
    ),
    "exit in an answer": (answering("        __import__('os')._exit(0)"), "ended the process that grades"),
    "key import": (
        "from minipaged.reference.allocator import *\n",
        r"got the library's own BlockAllocator.allocate why that is the answer key",
    ),
    "gc": (
        START
        + "\nimport gc, types\n"
        + "for f in gc.get_objects():\n"
        + "    if isinstance(f, types.FunctionType) and f.__name__.startswith('test_'):\n"
        + "        f.__code__ = (lambda exercise: None).__code__\n",
        r"called gc.get_objects, which finds the grader's own objects.*gc.py:"
        + str(START.count("\n") + 3)
        + r"",
    ),
    "code of the tests": (
        START
        + "\nimport sys\n"
        + "for m in list(sys.modules.values()):\n"
        + "    for name, f in list(vars(m).items()):\n"
        + "        if name.startswith('test_') and hasattr(f, '__code__'):\n"
        + "            f.__code__ = (lambda exercise: None).__code__\n",
        "replaced the code of test_blocks_come_from_the_top_of_the_stack",
    ),
    "monkeypatching pytest": (
        START
        + "\nfrom _pytest.reports import TestReport\n"
        + "real = TestReport.from_item_and_call\n"
        + "def passed(item, call):\n"
        + "    call.excinfo = None\n"
        + "    return real(item, call)\n"
        + "TestReport.from_item_and_call = passed\n",
        "replaced _pytest.reports.TestReport.from_item_and_call, a part of the grader",
    ),
    "monkeypatching the checks": (
        START + "\nimport minipaged.course.checks\nminipaged.course.checks.check = lambda *a: None\n",
        "replaced minipaged.course.checks.check, a part of the grader",
    ),
    "reading the key": (
        "import minipaged.reference, pathlib\n"
        "key = pathlib.Path(minipaged.reference.__path__[0], 'allocator.py').read_text()\n"
        "exec(key.replace('from .', 'from minipaged.reference.'))\n",
        r"read \S*allocator.py, a file of the answer key .*key.py:2",
    ),
    "a second copy of the key": (
        "import importlib, minipaged.reference.allocator as key\n"
        "BlockAllocator = importlib.reload(key).BlockAllocator\n",
        r"read \S*allocator\S*.pyc?, a file of the answer key",
    ),
    "writing among the records": (
        START
        + "\nimport os\n"
        + "for file in range(3, 64):\n"
        + '    try: os.write(file, b\'{"exit_code": 0, "num_collected": 17}\\n\')\n'
        + "    except OSError: pass\n",
        "wrote among the grader's records",
    ),
    "writing the progress": (
        START + f"\nopen({str(COURSE.root / '.progress.json')!r}, 'w').write('x')\n",
        r"wrote to \S*.progress.json",
    ),
    "deep recursion": (
        answering("        import sys; sys.setrecursionlimit(10**9); return self.allocate(num_blocks)"),
        "got RecursionError: maximum recursion depth exceeded",
    ),
    "a crash in C": (
        answering("        import ctypes; ctypes.string_at(0)"),
        "ended the process that grades with SIGSEGV: a crash in native code",
    ),
    "endless output": (
        answering("        while True: print('x' * 1000)"),
        "printed more than 4,000,000 bytes: a print in a loop that never ends?",
    ),
    "a thread left over": (
        KEY + "\nimport threading, time\nthreading.Thread(target=time.sleep, args=[30]).start()\n",
        "left a thread behind that goes on after the test",
    ),
    "sys.modules": (
        START
        + "\nimport sys, types\n"
        + "sys.modules['minipaged.course.checks'] = types.ModuleType('minipaged.course.checks')\n",
        "replaced sys.modules.minipaged.course.checks, a part of the grader",
    ),
    "forged records": (
        START
        + "\nimport json\n"
        + "dumps = json.dumps\n"
        + "def passed(record):\n"
        + "    if 'report' in record:\n"
        + "        record['report'].update(outcome='passed', failure=None, longrepr=None)\n"
        + "    return dumps(record)\n"
        + "json.dumps = passed\n",
        "replaced json.dumps, a part of the grader",
    ),
    "records without content": (
        START + "\nimport json\njson.dumps = lambda record: '{}'\n",
        "changed the grader's records",
    ),
    "the key by another name": (
        "import sys\n"
        f"sys.path.insert(0, {str(COURSE.root.parent)!r})\n"
        "from reference.allocator import BlockAllocator\n",
        r"read \S*allocator\S*, a file of the answer key .*name.py:3",
    ),
    "rewriting the tests": (
        START + f"\nopen({str(next(LESSON.path.glob('test_*.py')))!r}, 'a').close()\n",
        r"wrote to \S*test_allocator.py",
    ),
    "an interrupt": (answering("        raise KeyboardInterrupt"), "raised KeyboardInterrupt"),
    "a signal": (START + "\nimport os\nos.kill(os.getppid(), 15)\n", "sent a signal"),
    "builtins": (START + "\nimport builtins\nbuiltins.len = lambda *a: 3\n", "the exercise "),
    "another process": (
        START + "\nimport subprocess\nsubprocess.run(['cat', '/dev/null'])\n",
        "started another process",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_what_is_no_answer_fails_and_is_named(tmp_path: Path, name: str) -> None:
    text, told = CHEATS[name]
    file = tmp_path / f"{name.replace(' ', '_')}.py"
    file.write_text(text)
    code, printed = grade(file, "-x")
    assert code == 1, printed
    # A long path is broken anywhere when the report is wrapped.
    assert re.search(told.replace(" ", ""), printed.replace(" ", "")), printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("name", ["conftest.py", "sitecustomize.py", "usercustomize.py"])
def test_a_file_that_would_be_run_unasked_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("import os\nos._exit(0)\n")
    (tmp_path / "mine.py").write_text(START)
    code, printed = grade(tmp_path / "mine.py")
    assert code == 4 and f"{name}: only the exercise is graded, remove this file" in printed


UNUSUAL = """
import inspect, platform, sys, traceback
from concurrent.futures import ThreadPoolExecutor

import helper

traceback.print_stack()
print(inspect.stack()[0].function, platform.platform(), helper.value)
sys.setrecursionlimit(10**6)
with ThreadPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-1])) == [1]
with open("/dev/null", "a") as log:
    log.write("a log")
"""


def test_a_right_answer_may_do_more_than_answer(tmp_path: Path) -> None:
    """It may look at the stack, import a module beside it, write a log and use threads that end."""
    (tmp_path / "helper.py").write_text("value = 7\n")
    file = tmp_path / "mine.py"
    file.write_text(f"{KEY}\n{UNUSUAL}")
    code, printed = grade(file)
    assert code == 0, printed


def test_the_key_is_withheld_only_while_its_own_lesson_is_graded(tmp_path: Path) -> None:
    """Lesson 5 uses the library's allocator, and so may its exercise."""
    lesson = COURSE.find("5")
    file = tmp_path / "mine.py"
    file.write_text(as_submission(lesson, key_text(lesson)))
    code, printed = grade(file, lesson=lesson)
    assert code == 0, printed


def test_modules_are_those_of_the_process_that_runs_pytest(tmp_path: Path) -> None:
    """They come from the same folders, as on a PYTHONPATH; a sitecustomize.py there is not run."""
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "beside.py").write_text("")
    mine = tmp_path / "handed_in" / "mine.py"
    mine.parent.mkdir()
    mine.write_text(f"{KEY}\nimport beside\n")
    arguments = [str(LESSON.path), f"--submission={mine}", "-p", "no:cacheprovider"]
    program = (
        f"import sys, pytest\nsys.path.insert(0, {str(tmp_path)!r})\nsys.exit(pytest.main({arguments}))\n"
    )
    code, printed = run([sys.executable, "-c", program])
    assert code == 0, printed


def test_the_points_of_each_check_are_written(tmp_path: Path) -> None:
    """--json and --junitxml agree with the report: in this exercise one body of three is right."""
    file = tmp_path / "mine.py"
    file.write_text(KEY.replace("def share", "def shared").replace("def free(", "def freed("))
    points, junit = tmp_path / "points.json", tmp_path / "junit.xml"
    code, printed = grade(file, f"--json={points}", f"--junitxml={junit}")
    (lesson,) = json.loads(points.read_text())
    passed = {check["check"].rpartition("::")[2] for check in lesson["checks"] if check["points"]}
    assert code == 1 and not lesson["solved"] and lesson["lesson"] == "03_allocator"
    assert {"test_all_or_nothing", "test_the_error_says_how_many"} <= passed
    assert "test_double_free" not in passed
    assert len(lesson["checks"]) == lesson["of"] == len(LESSON.test_functions())
    assert lesson["points"] == len(passed) and f"{len(passed)} of {lesson['of']} checks pass" in printed
    assert all(check["rule"] and ("got" in check) == (not check["points"]) for check in lesson["checks"])
    suite = next(ElementTree.parse(junit).iter("testsuite"))
    assert int(suite.attrib["tests"]) == lesson["of"]
    assert int(suite.attrib["failures"]) == lesson["of"] - lesson["points"]


def test_with_all_the_lessons_around_a_cheat_are_graded_once(tmp_path: Path) -> None:
    """In a course of its own, whose lesson 2 ends the process."""
    copy, points = tmp_path / "lessons", tmp_path / "points.json"
    made = [str(Path(sys.executable).with_name("minipaged")), "lessons", "copy", str(copy)]
    subprocess.run(made, check=True, capture_output=True)
    lessons = COURSE.lessons[:3]
    for lesson in lessons:
        ending = "\nimport os\nos._exit(0)\n" if lesson.number == 2 else ""
        (copy / lesson.folder / "exercise.py").write_text(as_submission(lesson, key_text(lesson)) + ending)
    folders = [str(copy / lesson.folder) for lesson in lessons]
    command = [sys.executable, "-m", "pytest", "--all", f"--json={points}", *folders]
    code, printed = run(command, copy)
    assert code == 1
    one, two, three = (len(lesson.test_functions()) for lesson in lessons)
    told = [(lesson["solved"], lesson["points"], lesson["of"]) for lesson in json.loads(points.read_text())]
    assert told == [(True, one, one), (False, 0, two), (True, three, three)]
    assert f"0 of {two} checks pass" in printed
