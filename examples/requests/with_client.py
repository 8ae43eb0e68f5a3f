"""Makes a request with the Python client, and saves the files in a folder."""

import carrel

INSTRUCTIONS = """\
write hello.py print('hello')
say It is done."""

with carrel.Client() as client:
    stream = client.requests.generate(
        INSTRUCTIONS, frontend="scripted", check="python3 hello.py", retention={"hold_s": 600}
    )
    for frame in stream:
        if frame.type == "progress":
            print(f"{frame.progress:4.0%} {frame.message}")
        elif frame.type == "input_needed":
            stream.answer(input(f"{frame.question} "), id=frame.id)
    result = stream.result()
    saved = stream.save("made")
    stream.done()

for file in result.files:
    print(file.change, file.path, file.lines, file.language)
print("complete:", result.complete, "check:", result.check, "saved:", saved.files)
