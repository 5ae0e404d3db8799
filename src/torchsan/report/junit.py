"""The report as JUnit XML, which CI systems show beside the tests. Importing it imports no torch."""

from __future__ import annotations

from torchsan.recording import Reader
from torchsan.records import Severity
from torchsan.report.exporter import Exporter
from torchsan.report.findings import clean, finding_lines
from torchsan.report.verdict import Status, counting, verdict


class JunitExporter(Exporter[Reader]):
    """Writes a test case for each check that ran: it fails by its errors. What was incomplete is an error."""

    name = "junit"
    help = "write the checks as JUnit XML test cases to FILE"

    def render(self, subject: Reader) -> str:
        from xml.etree import ElementTree  # Here, because a command adds the flag whether or not it is used.

        outcome = verdict(subject)
        errors = [f for f in counting(subject) if f.severity is Severity.ERROR]
        checks = list(dict.fromkeys([*map(str, subject.manifest.options.check), *(str(f.check) for f in errors)]))
        suite = ElementTree.Element("testsuite", name="torchsan")
        program = clean(" ".join(subject.manifest.command), 200)
        for check in checks:
            case = ElementTree.SubElement(suite, "testcase", classname=f"torchsan.{check}", name=program)
            found = [f for f in errors if f.check == check]
            if found:
                text = "\n\n".join("\n".join(line.text for line in finding_lines(f)) for f in found)
                message = "; ".join(f"{f.kind}: {clean(f.message, 300)}" for f in found)
                ElementTree.SubElement(case, "failure", type=str(found[0].kind), message=message).text = text
        if outcome.status is Status.INCOMPLETE:
            case = ElementTree.SubElement(suite, "testcase", classname="torchsan", name=program)
            text = "\n".join(clean(reason) for reason in outcome.reasons)
            ElementTree.SubElement(case, "error", type="incomplete", message=clean(text)).text = text
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        suite.set("errors", str(len(suite.findall("testcase/error"))))
        root = ElementTree.Element("testsuites")
        root.append(suite)
        ElementTree.indent(root)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'
