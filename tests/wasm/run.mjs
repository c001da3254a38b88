// node run.mjs PYODIDE WHEELS CHECK: boots Pyodide from a folder, unpacks every wheel of another, and awaits the
// program's `main()`. The exit code is the verdict. Touches no network.
import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [pyodideFolder, wheelFolder, check] = process.argv.slice(2).map((path) => resolve(path));
const { loadPyodide, version } = await import(pathToFileURL(join(pyodideFolder, "pyodide.mjs")));

const pyodide = await loadPyodide({ indexURL: pyodideFolder });
console.log(`pyodide ${version}, ${pyodide.runPython("import sys; f'Python {sys.version.split()[0]} on {sys.platform}'")}`);

for (const name of readdirSync(wheelFolder).sort()) {
  console.log(`  ${name}`);
  pyodide.unpackArchive(new Uint8Array(readFileSync(join(wheelFolder, name))), "wheel"); // a Node Buffer is refused
}
pyodide.FS.writeFile("check.py", readFileSync(check));

// A program that waits for ever leaves Node without work, and Node then ends: that is no success.
process.exitCode = 1;
try {
  await pyodide.runPythonAsync("import sys; sys.path.insert(0, '.'); import check; await check.main()");
  process.exitCode = 0;
} catch (error) {
  console.error(String(error.message ?? error));
}
