import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.XAMetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.LoadBalanceStrategy;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.extension.MetaBroadcastMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.OrderedMetaMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.producer.OrderedMessagePartitionSelector;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.PartitionSelector;
import com.taobao.metamorphosis.client.producer.RoundRobinPartitionSelector;
import com.taobao.metamorphosis.client.producer.SendMessageCallback;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.client.producer.XAMessageProducer;
import com.taobao.metamorphosis.cluster.Partition;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.transaction.xa.XAException;
import javax.transaction.xa.Xid;

/** One service: a session factory, its producers and consumers, and the thread that uses them. */
final class Actor {
    private final String name;
    private final ExecutorService thread = Executors.newSingleThreadExecutor();
    private final List<MessageConsumer> consumers = new ArrayList<>();
    private final Map<String, Integer> refusals = new ConcurrentHashMap<>(); // payload, and how often to refuse it
    private MetaMessageSessionFactory factory;
    private MessageProducer producer;
    private XAMessageProducer xa;
    private volatile Partition chosen; // for the next send; null: the client's own choice

    Actor(String name) {
        this.name = name;
    }

    void ask(String[] words) {
        thread.execute(() -> {
            try {
                var said = new ArrayList<>(List.of(words[0], "ok"));
                said.addAll(answer(words[2], words));
                Driver.say(said.toArray(String[]::new));
            } catch (XAException error) {
                Driver.say(words[0], "error", "XAException", String.valueOf(error.errorCode), oneLine(error));
            } catch (Throwable error) {
                Driver.say(words[0], "error", error.getClass().getSimpleName(), "", oneLine(error));
            }
        });
    }

    private static String oneLine(Throwable error) {
        return String.valueOf(error.getMessage()).replaceAll("\\s+", " ");
    }

    private List<String> answer(String verb, String[] words) throws Exception {
        switch (verb) {
            case "open" -> open(words[3], words[4], words.length > 5 ? words[5] : "");
            case "publish" -> producer.publish(words[3]);
            case "default_topic" -> producer.setDefaultTopic(words[3]);
            case "send" -> {
                return send(producer, words);
            }
            case "flood" -> {
                return flood(words[3], Integer.parseInt(words[4]), words[5]);
            }
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commit();
            case "rollback" -> producer.rollback();
            case "timeout" -> producer.setTransactionTimeout(Integer.parseInt(words[3]));
            case "refuse" -> refusals.put(words[3], Integer.parseInt(words[4]));
            case "subscribe" -> subscribe(words);
            case "leave" -> {
                for (MessageConsumer consumer : consumers) {
                    consumer.shutdown();
                }
            }
            case "get" -> {
                return get(words);
            }
            case "browse" -> {
                return browse(words[3]);
            }
            case "partitions" -> {
                return factory.getPartitionsForTopic(words[3]).stream().map(Partition::toString).toList();
            }
            case "stats" -> {
                return factory.getStats(words[3]).values().stream().map(it -> it.getAllValues().toString()).toList();
            }
            case "shutdown" -> factory.shutdown();
            default -> {
                return xa(verb, words);
            }
        }
        return List.of();
    }

    private List<String> xa(String verb, String[] words) throws Exception {
        var resource = verb.equals("xa_open") ? null : xa.getXAResource();
        switch (verb) {
            case "xa_open" -> {
                xa = ((XAMetaMessageSessionFactory) factory).createXAProducer(this::choose);
                xa.setUniqueQualifier(words[3]);
                for (int at = 4; at < words.length; at++) {
                    xa.publish(words[at]);
                }
            }
            case "xa_start" -> resource.start(new Branch(words[3]), Integer.parseInt(words[4]));
            case "xa_send" -> {
                return send(xa, words);
            }
            case "xa_end" -> resource.end(new Branch(words[3]), Integer.parseInt(words[4]));
            case "xa_prepare" -> {
                return List.of(String.valueOf(resource.prepare(new Branch(words[3]))));
            }
            case "xa_commit" -> resource.commit(new Branch(words[3]), words[4].equals("one"));
            case "xa_rollback" -> resource.rollback(new Branch(words[3]));
            case "xa_forget" -> resource.forget(new Branch(words[3]));
            case "xa_timeout" -> resource.setTransactionTimeout(Integer.parseInt(words[3]));
            case "xa_recover" -> {
                var found = new ArrayList<String>();
                for (Xid xid : resource.recover(0)) {
                    found.add(new String(xid.getGlobalTransactionId()));
                }
                return found;
            }
            default -> throw new IllegalArgumentException(verb);
        }
        return List.of();
    }

    private void open(String kind, String where, String partitions) throws Exception {
        var config = new MetaClientConfig();
        if (kind.equals("direct")) {
            config.setServerUrl(where);
        } else {
            var zk = new ZKConfig();
            zk.zkConnect = where;
            zk.zkSessionTimeoutMs = 6_000;
            zk.zkSyncTimeMs = 500;
            config.setZkConfig(zk);
        }
        if (kind.equals("ordered")) {
            config.setPartitionsInfo(new Properties());
            for (String topic : partitions.split(",")) { // orders=0:4;1:4
                config.getPartitionsInfo().setProperty("topic.num." + topic.split("=")[0], topic.split("=")[1]);
            }
        }
        factory = switch (kind) {
            case "broadcast" -> new MetaBroadcastMessageSessionFactory(config);
            case "ordered" -> new OrderedMetaMessageSessionFactory(config);
            default -> new XAMetaMessageSessionFactory(config);
        };
        producer = factory.createProducer(kind.equals("ordered") ? new ByAttribute() : choosing());
    }

    private final PartitionSelector byTurns = new RoundRobinPartitionSelector();

    private PartitionSelector choosing() {
        return this::choose;
    }

    private Partition choose(String topic, List<Partition> partitions, Message message)
            throws com.taobao.metamorphosis.exception.MetaClientException {
        return chosen != null ? chosen : byTurns.getPartition(topic, partitions, message);
    }

    private List<String> send(MessageProducer by, String[] words) throws Exception {
        var message = message(words[3], words[4], words[5]);
        chosen = words[6].isEmpty() ? null : new Partition(words[6]);
        return told(by.sendMessage(message, 10, TimeUnit.SECONDS), message);
    }

    private static Message message(String topic, String payload, String attribute) {
        var bytes = Base64.getDecoder().decode(payload);
        return attribute.equals("-") ? new Message(topic, bytes) : new Message(topic, bytes, attribute);
    }

    private static List<String> told(SendResult result, Message message) {
        return result.isSuccess()
                ? List.of("sent", result.getPartition().toString(), result.getOffset() + "", message.getId() + "")
                : List.of("refused", String.valueOf(result.getErrorMessage()).replaceAll("\\s+", " "));
    }

    /** Sends all without waiting, and tells how many callbacks said success, how many not. */
    private List<String> flood(String topic, int count, String prefix) throws Exception {
        var done = new CountDownLatch(count);
        var sent = new AtomicInteger();
        chosen = null;
        for (int number = 0; number < count; number++) {
            producer.sendMessage(new Message(topic, (prefix + number).getBytes()), new SendMessageCallback() {
                @Override
                public void onMessageSent(SendResult result) {
                    sent.addAndGet(result.isSuccess() ? 1 : 0);
                    done.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    done.countDown();
                }
            }, 30, TimeUnit.SECONDS);
        }
        done.await(60, TimeUnit.SECONDS);
        return List.of(String.valueOf(sent.get()), String.valueOf(done.getCount()));
    }

    /** Subscribes to a topic. Words: group, id, topic, bytes a fetch, then settings. */
    private void subscribe(String[] words) throws Exception {
        var config = new ConsumerConfig(words[3]);
        config.setConsumerId(words[4]);
        config.setMaxDelayFetchTimeInMills(200);
        config.setCommitOffsetPeriodInMills(200);
        for (int at = 7; at < words.length; at++) {
            switch (words[at]) {
                case "from_end" -> config.setConsumeFromMaxOffset();
                case "consistent" -> config.setLoadBalanceStrategyType(LoadBalanceStrategy.Type.CONSIST);
                default -> config.setMaxFetchRetries(Integer.parseInt(words[at]));
            }
        }
        var consumer = factory instanceof MetaBroadcastMessageSessionFactory broadcast
                ? broadcast.createBroadcastConsumer(config)
                : factory.createConsumer(config);
        consumers.add(consumer);
        consumer.subscribe(words[5], Integer.parseInt(words[6]), new Listener()).completeSubscribe();
    }

    /** What a get by hand returns, one word a message. */
    private List<String> get(String[] words) throws Exception {
        var config = new ConsumerConfig("by-hand");
        var consumer = factory.createConsumer(config);
        consumers.add(consumer);
        var found = new ArrayList<String>();
        var messages = consumer.get(words[3], new Partition(words[4]), Long.parseLong(words[5]), Integer.parseInt(words[6]));
        while (messages != null && messages.hasNext()) {
            found.add(encoded(messages.next()));
        }
        return found;
    }

    private List<String> browse(String topic) throws Exception {
        var browser = factory.createTopicBrowser(topic);
        var found = new ArrayList<String>();
        for (var messages = browser.iterator(); messages.hasNext(); ) {
            found.add(encoded(messages.next()));
        }
        browser.shutdown();
        return found;
    }

    private static String encoded(Message message) {
        return Base64.getEncoder().encodeToString(message.getData());
    }

    private final class Listener implements MessageListener {
        @Override
        public void recieveMessages(Message message) {
            var payload = new String(message.getData());
            var attribute = message.hasAttribute() ? message.getAttribute() : "-";
            Driver.say("-", name, message.getTopic(), String.valueOf(message.getPartition()), message.getId() + "", attribute, encoded(message));
            if (refusals.merge(payload, -1, Integer::sum) >= 0) {
                throw new IllegalStateException("refused, as asked");
            }
        }

        @Override
        public Executor getExecutor() {
            return null;
        }
    }

    /** An ordered producer's choice: the attribute is the place among the expected partitions. */
    private static final class ByAttribute extends OrderedMessagePartitionSelector {
        @Override
        protected Partition choosePartition(String topic, List<Partition> partitions, Message message) {
            return partitions.get(Integer.parseInt(message.getAttribute()) % partitions.size());
        }
    }

    private record Branch(String name) implements Xid {
        @Override
        public int getFormatId() {
            return 4_660;
        }

        @Override
        public byte[] getGlobalTransactionId() {
            return name.getBytes();
        }

        @Override
        public byte[] getBranchQualifier() {
            return "b".getBytes();
        }
    }
}
