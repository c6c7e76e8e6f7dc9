"""The command line: `metaq`. Read: main (finding commands, telling errors), output -> a file a noun."""
