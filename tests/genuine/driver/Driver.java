import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * Does with MetaQ's own client what a test asks: lines in and out, their words separated by tabs.
 *
 * In: number, actor, verb, arguments. Out: the number, "ok" and results, or "error" and why; and "-" before a message
 * that a listener got. Actors are threads, because transactions of this client belong to threads.
 */
public final class Driver {
    public static void main(String[] none) throws IOException {
        Map<String, Actor> actors = new HashMap<>();
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split("\t", -1);
            actors.computeIfAbsent(words[1], Actor::new).ask(words);
        }
        Runtime.getRuntime().halt(0);
    }

    static void say(String... words) {
        synchronized (System.out) {
            System.out.println(String.join("\t", words));
            System.out.flush();
        }
    }
}
