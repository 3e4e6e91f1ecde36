# SPDX-License-Identifier: Apache-2.0
import pathlib
import tempfile
import unittest

import source_text


def text_of(code):
    return source_text.normalize(code)[0]


def includes_of(code):
    return source_text.normalize(code)[1]


class Normalize(unittest.TestCase):
    def same(self, one, other):
        self.assertEqual(text_of(one), text_of(other))

    def differ(self, one, other):
        self.assertNotEqual(text_of(one), text_of(other))

    def test_comments_and_white_space_do_not_count(self):
        self.same("int f(int a) { return a + 1; }", "// why\nint f( int a )\n{\n  return a /* + 2 */ + 1;\n}\n\n")
        self.same("int a; // one \\\n still a comment\nint b;", "int a;\nint b;")
        self.same("int a;\r\nint b;\r\n", "int a;\nint b;\n")

    def test_include_lines_do_not_count(self):
        self.same("#include <a.hpp>\n#include \"b.hpp\"\nint a;", "#  include \"b.hpp\" // b\nint a;\n#include <c.hpp>\n")
        self.same("int a;\n#include <a.hpp>", "int a;")

    def test_tokens_count(self):
        self.differ("int a = 1;", "int a = 2;")
        self.differ("a+++b", "a+ ++b")
        self.differ("inta;", "int a;")
        self.differ("x = 1'0;", "x = 1'00;")
        self.differ("x = 1e+5;", "x = 1e +5;")
        self.differ("\"a\"_s", "\"a\" _s")

    def test_strings_are_kept(self):
        self.differ('f("a b");', 'f("a  b");')
        self.differ('f("a // b");', 'f("a ");')
        self.differ("f('\"'); // \"", "f('x'); // \"")
        self.differ('f("\\"/*"); g(); f("*/");', 'f("\\"/*"); f("*/");')
        self.differ('f(R"(a // b)");', 'f(R"(a //  b)");')
        self.differ('f(R"x(a)" /* b */)x");', 'f(R"x(a)")x");')
        self.same('f(R"(a)"); // b', 'f( R"(a)" );')

    def test_directives_stand_on_their_line(self):
        self.differ("#if A\nB\n#endif", "#if A B\n#endif")
        self.differ("#define F (x)\n", "#define F(x)\n")
        self.differ("#define F(x) x\ny\n", "#define F(x) x y\n")
        self.same("#define F(x)   \\\n  (x)\ny", "#  define F(x) (x) // of x\ny")
        self.differ("a\n#undef b", "a #undef b")
        self.differ("#define A 1\n#undef A", "#undef A\n#define A 1")
        self.same("#error it's not so\nint a;", "#error  it's not so\nint  a;")


class Includes(unittest.TestCase):
    def test_names(self):
        self.assertEqual(includes_of('#include <a/b.hpp>\n # include "c.hpp"\n#if 0\n#include "d.hpp"\n#endif'),
                         [("a/b.hpp", False), ("c.hpp", True), ("d.hpp", True)])

    def test_not_in_comments_and_strings(self):
        self.assertEqual(includes_of('// #include <a>\n/*\n#include <b>\n*/ f(R"(\n#include <c>\n)");'), [])

    def test_what_follows_an_include_counts(self):
        self.assertEqual(text_of("#include <a>\nint b;"), text_of("int b;"))

    def test_a_macro_cannot_be_followed(self):
        with self.assertRaisesRegex(source_text.ScanError, "line 2: an include whose name is a macro"):
            text_of("int a;\n#include NAME\n")


class Closure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.put("include/polystate/a.hpp", "#include <polystate/core/b.hpp>\n#include <vector>\nint a;")
        self.put("include/polystate/core/b.hpp", "int b;")
        self.put("tests/support/s.hpp", "int s;")
        self.put("tests/x/own.hpp", "int own;")
        self.put("tests/x/x.cu", '#include "own.hpp"\n#include "support/s.hpp"\n#if 0\n#include <polystate/a.hpp>\n#endif')
        self.put("tests/x/unused.hpp", "int unused;")

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def hash(self):
        return source_text.Tree(self.root).hash(["tests/x/x.cu"])

    def test_follows_includes(self):
        self.assertEqual(source_text.Tree(self.root).closure(["tests/x/x.cu"]),
                         ["include/polystate/a.hpp", "include/polystate/core/b.hpp", "tests/support/s.hpp",
                          "tests/x/own.hpp", "tests/x/x.cu"])

    def test_a_change_of_code_anywhere_counts(self):
        before = self.hash()
        for name in ("include/polystate/core/b.hpp", "tests/support/s.hpp", "tests/x/own.hpp"):
            text = (self.root / name).read_text()
            self.put(name, "// why\n" + text)
            self.assertEqual(self.hash(), before, name)
            self.put(name, text + " int more;")
            self.assertNotEqual(self.hash(), before, name)
            self.put(name, text)
        self.put("tests/x/unused.hpp", "int other;")
        self.assertEqual(self.hash(), before)

    def test_an_include_more_counts_for_the_file_that_it_brings(self):
        before = self.hash()
        self.put("tests/support/s.hpp", "#include <polystate/core/b.hpp>\nint s;")
        self.assertEqual(self.hash(), before)
        self.put("tests/support/s.hpp", '#include "x/unused.hpp"\nint s;')
        self.assertNotEqual(self.hash(), before)

    def test_a_source_that_is_gone(self):
        self.assertIsNone(source_text.Tree(self.root).hash(["tests/x/gone.cu"]))


if __name__ == "__main__":
    unittest.main()
