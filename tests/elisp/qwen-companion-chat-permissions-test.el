;;; qwen-companion-chat-permissions-test.el --- Tests of what a chat asks  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What is shown before an answer, which keys answer, and what is refused.

;;; Code:

(require 'qwen-companion-chat-test-helper)
(require 'qwen-companion-chat-permissions)

(defconst qwen-companion-chat-permissions-test--shell
  '((:id "o1" :label "Always Allow in project: touch *" :allows t :lasting t :writes project)
    (:id "o2" :label "Always Allow for user: touch *" :allows t :lasting t :writes user)
    (:id "o3" :label "Allow" :allows t)
    (:id "o4" :label "Reject"))
  "The options of a shell command.")

(defconst qwen-companion-chat-permissions-test--questions
  '((:text "Which database?" :header "Database"
     :choices ((:label "sqlite" :description "one file") (:label "postgres")))
    (:text "Which colours?" :header "Colours" :multiple t
     :choices ((:label "red") (:label "blue"))))
  "A form.")

(defmacro qwen-companion-chat-permissions-test-with (&rest body)
  "Run BODY in a chat where no reason is asked for."
  (declare (indent 0) (debug t))
  `(cl-letf (((symbol-function 'qwen-companion-chat-permissions--read-reason) #'ignore))
     (qwen-companion-chat-test-with ,@body)))

(defun qwen-companion-chat-permissions-test--tool (&rest more)
  "Let the Python process tell the tool \"c1\", with MORE about it."
  (qwen-companion-chat-test-turn
   (append (list :kind 'tool :turn "t1" :id "c1" :status 'pending :title "touch x") more)))

(defun qwen-companion-chat-permissions-test--ask (&rest report)
  "Let the Python process tell a permission about \"c1\": REPORT, or open."
  (apply #'qwen-companion-chat-test-tell 'daemon-permission
         (append '(:session "s") report
                 '(:permission "p1" :state open :turn "t1" :tool "c1" :title "touch x")
                 (list :options qwen-companion-chat-permissions-test--shell))))

(defun qwen-companion-chat-permissions-test--press (key)
  "Press KEY in the chat."
  (setq last-command-event (aref (kbd key) (1- (length (kbd key)))))
  (call-interactively (key-binding (kbd key))))

(defun qwen-companion-chat-permissions-test--sent ()
  "Return the answers that were sent, without their requests and revisions."
  (mapcar (lambda (payload) (cl-loop for (key value) on payload by #'cddr
                                     unless (memq key '(:request :revision))
                                     append (list key value)))
          (qwen-companion-test-sent 'daemon-answer)))

(defun qwen-companion-chat-permissions-test--answers (key)
  "Check that pressing KEY sends the only answer."
  (qwen-companion-chat-permissions-test--press key)
  (should (= 1 (length (qwen-companion-chat-permissions-test--sent)))))

(defun qwen-companion-chat-permissions-test--chosen ()
  "Return the id of the option that was sent first."
  (plist-get (car (qwen-companion-chat-permissions-test--sent)) :option))

(defun qwen-companion-chat-permissions-test--refuses (key &optional regexp)
  "Check that pressing KEY is refused as REGEXP says, and nothing is sent."
  (should (string-match-p (or regexp "") (qwen-companion-chat-permissions-test--refused
                                          #'qwen-companion-chat-permissions-test--press key))))

(defun qwen-companion-chat-permissions-test--refused (function &rest arguments)
  "Return why FUNCTION with ARGUMENTS is refused; nothing may be sent."
  (let ((before (length (qwen-companion-test-sent 'daemon-answer))))
    (prog1 (cadr (should-error (apply function arguments) :type 'user-error))
      (should (= before (length (qwen-companion-test-sent 'daemon-answer)))))))

(defun qwen-companion-chat-permissions-test--shown-p (regexp)
  "Return non-nil when REGEXP matches in the conversation."
  (string-match-p regexp (qwen-companion-chat-test-conversation)))

(defun qwen-companion-chat-permissions-test--text (part text &optional index)
  "Let the Python process tell TEXT, which is PART of \"c1\"; INDEX of a change."
  (qwen-companion-chat-test-tell 'daemon-text :session "s" :tool "c1"
                                 :part part :index (or index 0) :text text))

(defmacro qwen-companion-chat-permissions-test-asked (tool report &rest body)
  "Run BODY in a chat where TOOL has asked whether it may run: REPORT.
Both are the keys that are not as usual."
  (declare (indent 2) (debug t))
  `(qwen-companion-chat-permissions-test-with
     (qwen-companion-chat-permissions-test--tool ,@tool)
     (qwen-companion-chat-permissions-test--ask ,@report)
     ,@body))

(defmacro qwen-companion-chat-permissions-test-changing (old-size new-size &rest body)
  "Run BODY in a chat where a tool has asked to change the file a.txt.
It is changed from OLD-SIZE, nil for a new file, to NEW-SIZE."
  (declare (indent 2) (debug t))
  `(qwen-companion-chat-permissions-test-asked
       (:diffs '((:index 0 :path "/project/a.txt" :old-size ,old-size :new-size ,new-size))) ()
     ,@body))

(defmacro qwen-companion-chat-permissions-test-changing-much (keys &rest body)
  "Run BODY in a chat where a tool has asked to change /project/a.txt much.
KEYS are more keys of the tool, or others than those of that change."
  (declare (indent 1) (debug t))
  `(let ((qwen-companion-diff-style 'unified))
     (qwen-companion-chat-permissions-test-asked
         (,@keys :diffs '((:index 0 :path "/project/a.txt" :old-size 100000 :new-size 9))) ()
       ,@body)))

(defun qwen-companion-chat-permissions-test--difference ()
  "Wait for the buffer with the difference of a.txt, and return its text."
  (qwen-companion-test-wait-for (get-buffer "*qwen-companion difference: a.txt*"))
  (qwen-companion-test-buffer-text "*qwen-companion difference: a.txt*"))

(defun qwen-companion-chat-permissions-test--texts (old new)
  "Let the Python process tell the texts OLD and NEW of the change of \"c1\"."
  (qwen-companion-chat-permissions-test--text 'new new)
  (qwen-companion-chat-permissions-test--text 'old old))

;;; Asking

(ert-deftest qwen-companion-chat-permissions-test-options-are-the-daemons ()
  "Any options with any names are offered; d dismisses."
  (qwen-companion-chat-permissions-test-asked ()
      (:options '((:id "x" :label "Something new" :allows t :lasting t :writes unknown)
                  (:id "y" :label "For now" :allows t :lasting t)
                  (:id "z" :label "Of a new sort" :allows t :writes unknown)))
    (should (qwen-companion-chat-permissions-test--shown-p
             "C-c C-a 1  Something new  lasting; its effect .* is unknown"))
    (should (qwen-companion-chat-permissions-test--shown-p
             "C-c C-a !  For now  holds for the rest of this session"))
    (should (qwen-companion-chat-permissions-test--shown-p
             "C-c C-a 2  Of a new sort  an unknown kind of option; it may allow more"))
    (qwen-companion-chat-permissions-test--refuses
     "C-c C-a y" "\\`This question has no answer with the key y\\'")
    (qwen-companion-chat-permissions-test--press "C-c C-a d")
    (should (equal '((:session "s" :permission "p1" :option nil :answers nil))
                   (qwen-companion-chat-permissions-test--sent)))))

(ert-deftest qwen-companion-chat-permissions-test-more-options-than-keys ()
  "Options without a key are chosen on their lines, which no label can imitate."
  (qwen-companion-chat-permissions-test-asked ()
      (:options (mapcar (lambda (number)
                          (list :id (format "o%d" number) :allows t
                                :label (format "Number %d\n  C-c 1  Reject" number)))
                        (number-sequence 0 10)))
    (should (qwen-companion-chat-permissions-test--shown-p
             "  C-c C-a 9  Number 9 C-c 1 Reject\n  RET        Number 10 C-c 1 Reject\n"))
    (qwen-companion-test-go-to "Number 10")
    (call-interactively (key-binding (kbd "RET")))
    (should (equal "o10" (qwen-companion-chat-permissions-test--chosen)))))

(ert-deftest qwen-companion-chat-permissions-test-shows-what-is-asked-for ()
  "A change of any kind of file, and a command beside it."
  (pcase-dolist (`(,tool . ,lines)
                 '(((:diffs ((:index 0 :path "/project/.envrc" :old-size 8 :new-size 9)
                             (:index 1 :path ".git/hooks/pre-commit" :old-size 8 :new-size 9)
                             (:index 2 :path "/project/a.txt" :old-size 8 :new-size 9)))
                    "\\.envrc  can run code (direnv)\n" "pre-commit  can run code (git)\n" "a\\.txt\n")
                   ((:diffs ((:index 0 :path "/project/a.txt" :old-size 0 :new-size 4)))
                    "    /project/a.txt (new file, or an empty one)\n")
                   ((:command "sed -i s/a/b/ a.txt"
                              :input "command: sed -i s/a/b/ a.txt\nis_background: false"
                              :diffs ((:index 0 :path "/project/a.txt" :old-size 1 :new-size 1)))
                    "command: sed -i s/a/b/ a.txt\nis_background: false\n    /project/a.txt\n")))
    (qwen-companion-chat-permissions-test-with
      (apply #'qwen-companion-chat-permissions-test--tool tool)
      (qwen-companion-chat-permissions-test--ask)
      (dolist (line lines)
        (should (qwen-companion-chat-permissions-test--shown-p line))))))

(ert-deftest qwen-companion-chat-permissions-test-shows-the-warning-of-the-daemon ()
  "A warning is between the title and the tool's input; nothing is hidden in it."
  (qwen-companion-chat-permissions-test-asked
      (:input "command: touch x")
      (:message "This is outside\nof the work\u200bspace.\n")
    (should (qwen-companion-chat-permissions-test--shown-p
             "Permission: touch x\nThis is outside\nof the work\\\\u200Bspace.\ncommand: touch x\n"))
    (qwen-companion-test-go-to "outside")
    (should (eq 'warning (get-text-property (1- (point)) 'face)))))

(ert-deftest qwen-companion-chat-permissions-test-never-a-minibuffer-by-itself ()
  "It is asked in the conversation and in the mode line, and point stays."
  (qwen-companion-chat-permissions-test-with
    (insert "half a pro")
    (cl-letf (((symbol-function 'read-from-minibuffer) (lambda (&rest _) (ert-fail "asked")))
              ((symbol-function 'read-event) (lambda (&rest _) (ert-fail "asked"))))
      (should (equal "" (qwen-companion-chat-permissions-lighter)))
      (qwen-companion-chat-permissions-test--tool)
      (qwen-companion-chat-permissions-test--ask)
      (should (equal " Asks:1" (qwen-companion-chat-permissions-lighter)))
      (should (string-match-p "Asks:1" (qwen-companion-test-lighter)))
      ;; A part that stands out, whatever is before it.
      (should (eq 'warning (plist-get (cddar (last (qwen-companion--lighter-parts))) 'face))))
    (should (eobp))
    (should (equal "half a pro" (qwen-companion-chat-test-prompt)))
    (qwen-companion-chat-permissions-test--ask :state 'closed :by 'me :label "Allow" :options nil)
    (should (equal "" (qwen-companion-chat-permissions-lighter)))))

(ert-deftest qwen-companion-chat-permissions-test-answer-from-elsewhere-goes-there ()
  (qwen-companion-chat-permissions-test-with
    (let ((chat (current-buffer)))
      (qwen-companion-chat-permissions-test--tool)
      (with-temp-buffer
        (should (string-match-p "Nothing waits" (qwen-companion-chat-permissions-test--refused #'call-interactively #'qwen-companion-chat-answer))))
      (qwen-companion-chat-permissions-test--ask)
      (with-temp-buffer
        (call-interactively #'qwen-companion-chat-answer))
      (should (eq chat (window-buffer)))
      (with-current-buffer chat (should (looking-at-p "Permission: touch x"))))))

(ert-deftest qwen-companion-chat-permissions-test-answer-asks-which ()
  "The command reads one of the options, which name the rules that they save."
  (qwen-companion-chat-permissions-test-with
    (should (string-match-p "Nothing waits" (qwen-companion-chat-permissions-test--refused #'call-interactively #'qwen-companion-chat-answer)))
    (qwen-companion-chat-permissions-test--tool)
    (qwen-companion-chat-permissions-test--ask)
    (let (offered)
      (qwen-companion-test-choosing
          (lambda (_prompt choices &rest _)
            (setq offered (all-completions "" choices))
            (nth 1 offered))
        (call-interactively #'qwen-companion-chat-answer))
      (should (= 5 (length offered)))
      (should (string-match-p "writes a rule" (nth 3 offered))))
    (should (equal "o3" (qwen-companion-chat-permissions-test--chosen)))))

(ert-deftest qwen-companion-chat-permissions-test-keys-by-meaning ()
  "The same key does the same, whatever the tool and the order of its options."
  (let ((edit '((:id "e1" :label "Allow All Edits" :allows t :lasting t)
                (:id "e2" :label "Allow" :allows t)
                (:id "e3" :label "Reject"))))
    (pcase-dolist (`(,key ,options ,id)
                   `(("y" ,edit "e2") ("n" ,edit "e3") ("!" ,edit "e1")
                     ("y" ,(reverse edit) "e2")
                     ("y" ,qwen-companion-chat-permissions-test--shell "o3")
                     ("n" ,qwen-companion-chat-permissions-test--shell "o4")))
      (qwen-companion-chat-permissions-test-asked () (:options options)
        ;; In the prompt it is a letter, at the question it answers.
        (should (eq 'self-insert-command (key-binding (kbd key))))
        (qwen-companion-test-go-to "Permission: ")
        (qwen-companion-chat-permissions-test--press key)
        (should (equal id (qwen-companion-chat-permissions-test--chosen)))))))

(ert-deftest qwen-companion-chat-permissions-test-rule-is-named-and-asked-for ()
  (pcase-dolist (`(,key ,id ,file) '(("C-c C-a W" "o1" "/project/\\.qwen/settings\\.json")
                                     ("C-c C-a U" "o2" "~/\\.qwen/settings\\.json")))
    (qwen-companion-chat-permissions-test-asked () ()
      (let (asked consent)
        (qwen-companion-test-answering (lambda (prompt) (setq asked prompt) consent)
          (qwen-companion-chat-permissions-test--refused
           #'qwen-companion-chat-permissions-test--press key)
          (should (string-match-p (concat "touch \\*: write this rule into " file) asked))
          (setq consent t)
          (qwen-companion-chat-permissions-test--press key)))
      (should (equal id (qwen-companion-chat-permissions-test--chosen))))))

(ert-deftest qwen-companion-chat-permissions-test-changed-request-is-not-allowed ()
  "A request that changes while the user is asked is not allowed."
  (qwen-companion-chat-permissions-test-asked (:revision 1) ()
    (qwen-companion-test-answering
        (lambda (_) (qwen-companion-chat-permissions-test--tool :revision 2) t)
      (qwen-companion-chat-permissions-test--refuses "C-c C-a W" "has changed meanwhile"))))

(ert-deftest qwen-companion-chat-permissions-test-no-with-a-reason ()
  "The reason is sent as a prompt once the answer was accepted; the draft stays."
  (qwen-companion-chat-permissions-test-with
    (insert "a draft")
    (qwen-companion-chat-permissions-test--tool)
    (qwen-companion-chat-permissions-test--ask)
    (cl-letf (((symbol-function 'qwen-companion-chat-permissions--read-reason)
               (lambda (_item) "use make")))
      (qwen-companion-chat-permissions-test--press "C-c C-a n"))
    (should-not (qwen-companion-test-sent 'daemon-prompt))
    (qwen-companion-chat-test-reply 'daemon-answer)
    (should (string-match-p "use make" (format "%S" (qwen-companion-test-sent 'daemon-prompt))))
    (should (equal "a draft" (qwen-companion-chat-test-prompt)))))

;;; What must not be answered

(ert-deftest qwen-companion-chat-permissions-test-key-for-another-question-is-refused ()
  "A key that was meant for a question that has just gone answers no other."
  (qwen-companion-chat-permissions-test-asked () ()
    (qwen-companion-chat-permissions-test--ask :permission "p2" :title "rm -rf /")
    (should (qwen-companion-chat-permissions-test--shown-p "Waits until the question above"))
    (qwen-companion-test-go-to "rm -rf")
    (search-forward "Allow\n")
    (backward-char)
    (should (string-match-p "older question" (qwen-companion-chat-permissions-test--refused #'qwen-companion-chat-permissions-choose)))
    (setq qwen-companion-chat-permissions--key-delay 60)
    (qwen-companion-chat-permissions-test--ask :state 'closed :by 'other :label "Allow")
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "only just come up")
    ;; Time enough, or the clock was set back.
    (let ((now (float-time)))
      (cl-letf (((symbol-function 'float-time) (lambda (&optional _) (- now 3600))))
        (qwen-companion-chat-permissions-test--press "C-c C-a n")))
    (should (equal "p2" (plist-get (car (qwen-companion-chat-permissions-test--sent))
                                   :permission)))))

(ert-deftest qwen-companion-chat-permissions-test-held-takes-no-answer ()
  "Held while the connection is lost; open again under the same name."
  (qwen-companion-chat-permissions-test-asked () ()
    (qwen-companion-chat-permissions-test--ask :state 'held)
    (should (qwen-companion-chat-permissions-test--shown-p "Held: the connection is lost"))
    (should-not (qwen-companion-chat-permissions-test--shown-p "C-c C-a y"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "connection to the daemon is lost")
    (qwen-companion-chat-permissions-test--ask)
    (should-not (qwen-companion-chat-permissions-test--shown-p "Held"))
    (qwen-companion-chat-permissions-test--answers "C-c C-a y"))
  ;; So is it when the Python process is gone.
  (qwen-companion-chat-permissions-test-asked () ()
    (run-hooks 'qwen-companion-backend-disconnected-hook)
    (should (qwen-companion-chat-permissions-test--shown-p "Held"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "connection")))

(ert-deftest qwen-companion-chat-permissions-test-answered-elsewhere ()
  "It says which client answered, and its keys are gone."
  (pcase-dolist (`(,by ,label ,text . ,title)
                 '((other "Allow" "touch x: answered by another client: \"Allow\"")
                   (me "Reject" "touch x: you answered \"Reject\"")
                   (me nil "touch x: you dismissed it")
                   (nobody nil "touch x: closed without an answer")
                   (nil nil "touch x: closed; the answer is unknown here")
                   ;; The daemon's title of a plan ends in a colon.
                   (me "Yes" "\nPlan: you answered \"Yes\"\n" "Plan:")))
    (qwen-companion-chat-permissions-test-asked () (:title (or (car title) "touch x"))
      (qwen-companion-chat-permissions-test--ask :state 'closed :by by :label label :options nil :title (or (car title) "touch x"))
      (should (string-search text (qwen-companion-chat-test-conversation)))
      (should-not (qwen-companion-chat-permissions-test--shown-p "C-c C-a y"))
      (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "Nothing waits"))))

(ert-deftest qwen-companion-chat-permissions-test-answer-not-taken ()
  "It is not sent twice; a failure is reported, and the keys work again."
  (qwen-companion-chat-permissions-test-asked () ()
    (qwen-companion-chat-permissions-test--press "C-c C-a y")
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "being sent")
    (qwen-companion-chat-test-reply 'daemon-answer :error "The daemon is busy." :problem 'busy)
    (should (qwen-companion-chat-permissions-test--shown-p
             "Your answer was not accepted: The daemon is busy\\."))
    (qwen-companion-chat-permissions-test--press "C-c C-a y")
    (should (= 2 (length (qwen-companion-chat-permissions-test--sent))))
    ;; It was answered elsewhere in between: nothing is left to say.
    (qwen-companion-chat-permissions-test--ask :state 'closed :by 'other)
    (qwen-companion-chat-test-reply 'daemon-answer :error "It is gone." :problem 'gone)
    (should-not (qwen-companion-chat-permissions-test--shown-p "not accepted"))))

(ert-deftest qwen-companion-chat-permissions-test-reset-forgets ()
  (qwen-companion-chat-permissions-test-asked () ()
    (qwen-companion-chat-test-tell 'daemon-reset :session "s" :batches 0)
    (should (equal "" (qwen-companion-chat-permissions-lighter)))
    (should-not (qwen-companion-chat-permissions-test--shown-p "Permission"))
    (qwen-companion-chat-permissions-test--ask)
    (should (equal " Asks:1" (qwen-companion-chat-permissions-lighter)))
    ;; A chat that is killed asks nothing.
    (kill-buffer)
    (should (equal "" (qwen-companion-chat-permissions-lighter)))))

;;; What is allowed was seen

(ert-deftest qwen-companion-chat-permissions-test-cut-input-is-seen-first ()
  "Input that is cut in the conversation is allowed only after all was shown."
  (qwen-companion-chat-permissions-test-asked (:input "command: echo" :input-more 17) ()
    (should (qwen-companion-chat-permissions-test--shown-p "17 characters more  C-c C-v shows all"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "Not allowed yet: the tool's input is cut off here")
    (qwen-companion-chat-permissions-test--press "C-c C-v")
    (qwen-companion-chat-permissions-test--text 'input "command: echo\n; rm -rf /")
    (with-current-buffer "*qwen-companion chat: input of touch x*"
      (should (get-buffer-window))
      (should buffer-read-only)
      (should (equal "command: echo\n; rm -rf /"
                     (buffer-substring-no-properties (point-min) (point-max)))))
    (qwen-companion-chat-permissions-test--answers "C-c C-a y"))
  ;; To reject it needs no look.
  (qwen-companion-chat-permissions-test-asked (:input "command: echo" :input-more 17) ()
    (qwen-companion-chat-permissions-test--answers "C-c C-a n")))

(ert-deftest qwen-companion-chat-permissions-test-change-is-in-the-conversation ()
  "A change of a file is shown as a diff, with hidden characters made visible."
  (qwen-companion-chat-permissions-test-changing 8 9
    (should (qwen-companion-chat-permissions-test--shown-p "being fetched"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "the change is not shown here")
    (qwen-companion-chat-permissions-test--text 'diff "@@ -1,2 +1,2 @@\n one\n-two\n+2\u200b\n")
    (qwen-companion-test-wait-for
     (qwen-companion-chat-permissions-test--shown-p
      "    /project/a\\.txt\n@@ -1,2 \\+1,2 @@\n one\n-two\n\\+2\\\\u200B\n"))
    (qwen-companion-test-go-to "-two")
    (should (eq 'diff-removed (get-text-property (1- (point)) 'face)))
    (qwen-companion-chat-permissions-test--answers "C-c C-a y")
    ;; It stays, with its size, once it was allowed.
    (qwen-companion-chat-permissions-test--ask :state 'closed :by 'me :label "Allow" :options nil)
    (should (qwen-companion-chat-permissions-test--shown-p
             "you answered \"Allow\"\n    /project/a\\.txt  \\+1 -1\n@@ -1,2 \\+1,2 @@\n one\n-two\n"))))

(ert-deftest qwen-companion-chat-permissions-test-new-file ()
  (qwen-companion-chat-permissions-test-changing nil 4
    (qwen-companion-chat-permissions-test--text 'diff "@@ -0,0 +1 @@\n+one\n")
    (should (qwen-companion-chat-permissions-test--shown-p "a\\.txt (new file)\n@@ .*\n\\+one\n"))))

(ert-deftest qwen-companion-chat-permissions-test-change-that-cannot-be-had ()
  "It is said and not allowed; it can be tried again."
  (qwen-companion-chat-permissions-test-changing 8 9
    (qwen-companion-chat-test-reply 'daemon-fetch :error "Gone." :problem 'gone)
    (should (qwen-companion-chat-permissions-test--shown-p "could not be fetched"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y")
    (qwen-companion-chat-permissions-test--press "C-c C-v")
    (qwen-companion-test-said "Gone"
      (qwen-companion-chat-test-reply 'daemon-fetch :error "Gone." :problem 'gone))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y")
    (qwen-companion-chat-permissions-test--answers "C-c C-a n")))

(ert-deftest qwen-companion-chat-permissions-test-long-change-opens-a-buffer ()
  "A change that is long is fetched on command, and shown as a diff."
  (qwen-companion-chat-permissions-test-changing-much
      (:diffs '((:index 0 :path "/ssh:nowhere.invalid:/a.txt" :old-size 100000 :new-size 9)))
    (should-not (qwen-companion-test-sent 'daemon-fetch))
    (should (qwen-companion-chat-permissions-test--shown-p "The change is long  C-c C-v shows all"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y")
    (qwen-companion-chat-permissions-test--press "C-c C-v")
    (qwen-companion-chat-permissions-test--text 'diff "-old\n+new\n")
    (should (string-match-p "^-old\n\\+new\n" (qwen-companion-chat-permissions-test--difference)))
    (should (get-buffer-window "*qwen-companion difference: a.txt*"))
    (should (buffer-local-value 'buffer-read-only (get-buffer "*qwen-companion difference: a.txt*")))
    (qwen-companion-chat-permissions-test--answers "C-c C-a y")))

(ert-deftest qwen-companion-chat-permissions-test-change-in-ediff ()
  "Both sides, read-only, in the mode of the file; quitting leaves nothing."
  (qwen-companion-chat-permissions-test-with
    (let ((qwen-companion-diff-style 'ediff)
          (chat (current-buffer))
          (ran nil)
          (before (buffer-list)))
      (let ((emacs-lisp-mode-hook (list (lambda () (setq ran t)))))
        (qwen-companion-chat-permissions-test--tool
         :diffs '((:index 0 :path "/project/a.el" :old-size 8 :new-size 90000)))
        (qwen-companion-chat-permissions-test--ask)
        (qwen-companion-chat-permissions-test--press "C-c C-v")
        (qwen-companion-chat-permissions-test--texts "(old)\n" ";; -*- eval: (setq ran t) -*-\n(new)\n"))
      (should-not ran)
      (let ((after (get-buffer "*qwen-companion after: a.el*")))
        (with-current-buffer after
          (should (eq 'emacs-lisp-mode major-mode))
          (should buffer-read-only))
        (should (get-buffer-window after))
        (with-current-buffer (car ediff-session-registry) (ediff-really-quit nil))
        (should-not (buffer-live-p after)))
      (should (get-buffer-window chat))
      (should-not (cl-remove-if (lambda (buffer)
                                  (or (memq buffer before)
                                      (string-match-p "\\`\\( \\|\\*\\(ediff-\\(errors\\|diff\\)\\|Ediff Reg\\)\\)" (buffer-name buffer))))
                                (buffer-list))))))

(ert-deftest qwen-companion-chat-permissions-test-change-that-ediff-cannot-show ()
  "It is shown as a difference, with the reason; Ediff leaves nothing."
  (qwen-companion-chat-permissions-test-changing-much ()
    (let ((qwen-companion-diff-style 'ediff))
      (qwen-companion-chat-permissions-test--press "C-c C-v")
      (qwen-companion-test-said "NUL" (qwen-companion-chat-permissions-test--texts "old\n" "n\0ew\n"))
      (should-not ediff-session-registry)
      (should-not (get-buffer "*qwen-companion after: a.txt*"))
      (qwen-companion-chat-permissions-test--text 'diff "-old\n+n\0ew\n")
      (should (string-match-p "^-old\n\\+n" (qwen-companion-chat-permissions-test--difference))))))

(ert-deftest qwen-companion-chat-permissions-test-long-command-and-change-are-both-seen ()
  (qwen-companion-chat-permissions-test-changing-much (:command "sed" :command-more 9 :input "command: sed" :input-more 9)
    (qwen-companion-chat-permissions-test--press "C-c C-v")
    (qwen-companion-chat-permissions-test--text 'input "command: sed -i s/a/b/")
    (should (get-buffer-window "*qwen-companion chat: input of touch x*"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y")
    (qwen-companion-chat-permissions-test--text 'diff "-a\n+b\n")
    (qwen-companion-chat-permissions-test--difference)
    (qwen-companion-chat-permissions-test--answers "C-c C-a y")))

(ert-deftest qwen-companion-chat-permissions-test-changes-left-out-are-never-allowed ()
  "It is said how many there are; even having looked at the rest is not enough."
  (qwen-companion-chat-permissions-test-changing-much
      (:diffs '((:index 0 :path "/project/a.txt" :old-size nil :new-size 4)) :diffs-more 30)
    (should (qwen-companion-chat-permissions-test--shown-p "    30 more changes, which cannot be shown here\n"))
    (qwen-companion-chat-permissions-test--text 'diff "+one\n")
    (qwen-companion-test-wait-for (qwen-companion-chat-permissions-test--shown-p "\n\\+one\n"))
    (qwen-companion-chat-permissions-test--press "C-c C-v")
    (qwen-companion-chat-permissions-test--text 'diff "+one\n")
    (qwen-companion-chat-permissions-test--difference)
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "can only be rejected")
    (qwen-companion-chat-permissions-test--answers "C-c C-a n")))

(ert-deftest qwen-companion-chat-permissions-test-changed-input-is-shown-again ()
  "A change of the same size counts too; earlier fetched text does not."
  (qwen-companion-chat-permissions-test-with
    (let ((diffs '((:index 0 :path "/project/a.txt" :old-size 4 :new-size 4))))
      (qwen-companion-chat-permissions-test--tool :revision 1 :diffs diffs)
      (qwen-companion-chat-permissions-test--ask)
      (qwen-companion-chat-permissions-test--text 'diff "-old\n+one\n")
      (qwen-companion-chat-permissions-test--tool :revision 2 :diffs diffs)
      (should (qwen-companion-chat-permissions-test--shown-p "being fetched"))
      (qwen-companion-chat-permissions-test--refuses "C-c C-a y")
      (qwen-companion-chat-permissions-test--text 'diff "-old\n+two\n")
      (qwen-companion-test-wait-for (qwen-companion-chat-permissions-test--shown-p "\n\\+two\n"))
      (should-not (qwen-companion-chat-permissions-test--shown-p "\\+one"))
      ;; Told again as it is, it stays.
      (qwen-companion-chat-permissions-test--tool :revision 2 :diffs diffs :status 'running)
      (should (qwen-companion-chat-permissions-test--shown-p "\n\\+two\n"))
      (qwen-companion-chat-permissions-test--press "C-c C-a y")
      ;; In case that yet another is on its way.
      (should (= 2 (plist-get (car (qwen-companion-test-sent 'daemon-answer)) :revision))))))

(ert-deftest qwen-companion-chat-permissions-test-changed-request-guards-the-keys-again ()
  "The keys are guarded again, and cut input has to be shown in full again."
  (qwen-companion-chat-permissions-test-asked (:revision 1 :input "command: echo" :input-more 5) ()
    (qwen-companion-chat-permissions-test--press "C-c C-v")
    (qwen-companion-chat-permissions-test--text 'input "command: echo 1234")
    (qwen-companion-chat-permissions-test--tool :revision 2 :input "command: echo" :input-more 5)
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "cut off here")
    (let ((qwen-companion-chat-permissions--key-delay 60))
      (qwen-companion-chat-permissions-test--refuses "C-c C-a n" "only just come up"))))

;;; Forms

(defun qwen-companion-chat-permissions-test--form ()
  "Let the Python process tell a form."
  (qwen-companion-chat-permissions-test--tool)
  (qwen-companion-chat-permissions-test--ask
   :title "Ask user 2 questions"
   :questions qwen-companion-chat-permissions-test--questions
   :options '((:id "submit" :label "Submit" :allows t) (:id "cancel" :label "Cancel"))))

(defun qwen-companion-chat-permissions-test--choose (text)
  "Press RET on the line with TEXT."
  (qwen-companion-test-go-to text)
  (qwen-companion-chat-permissions-test--press "RET"))

(ert-deftest qwen-companion-chat-permissions-test-form ()
  "One answer, several, and one's own; sent with the option that allows."
  (qwen-companion-chat-permissions-test-with
    (qwen-companion-chat-permissions-test--form)
    (should (qwen-companion-chat-permissions-test--shown-p
             "  Database: Which database\\?\n    ( ) sqlite  one file\n    ( ) postgres\n    ( ) an answer of your own\n"))
    (should (qwen-companion-chat-permissions-test--shown-p
             "  Colours: Which colours\\?  (one or more)\n    \\[ \\] red\n"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "Question 1 has no answer")
    (qwen-companion-chat-permissions-test--choose "sqlite")
    (should (looking-back "(x) sqlite" (line-beginning-position)))
    (qwen-companion-chat-permissions-test--choose "postgres")
    (should (qwen-companion-chat-permissions-test--shown-p "( ) sqlite.*\n    (x) postgres"))
    (qwen-companion-chat-permissions-test--refuses "C-c C-a y" "Question 2 has no answer")
    (qwen-companion-chat-permissions-test--choose "[ ] red")
    (qwen-companion-chat-permissions-test--choose "[ ] blue")
    (qwen-companion-chat-permissions-test--choose "[x] red")
    (qwen-companion-test-choosing "green"
      (qwen-companion-chat-permissions-test--choose "[ ] an answer"))
    (should (qwen-companion-chat-permissions-test--shown-p "\\[x\\] green"))
    (qwen-companion-chat-permissions-test--press "C-c C-a y")
    (should (equal '((:session "s" :permission "p1" :option "submit"
                               :answers (("postgres") ("blue" "green"))))
                   (qwen-companion-chat-permissions-test--sent)))))

(ert-deftest qwen-companion-chat-permissions-test-form-keeps-its-answers-while-held ()
  "Cancelled, it has none."
  (qwen-companion-chat-permissions-test-with
    (qwen-companion-chat-permissions-test--form)
    (qwen-companion-chat-permissions-test--choose "sqlite")
    (qwen-companion-chat-permissions-test--ask :state 'held :questions qwen-companion-chat-permissions-test--questions)
    (should (qwen-companion-chat-permissions-test--shown-p "(x) sqlite"))
    (qwen-companion-test-refused "connection" (qwen-companion-chat-permissions-test--choose "postgres"))
    (should (qwen-companion-chat-permissions-test--shown-p "(x) sqlite"))
    (qwen-companion-chat-permissions-test--form)
    (qwen-companion-chat-permissions-test--press "C-c C-a n")
    (should (equal '((:session "s" :permission "p1" :option "cancel" :answers nil))
                   (qwen-companion-chat-permissions-test--sent)))))

(provide 'qwen-companion-chat-permissions-test)
;;; qwen-companion-chat-permissions-test.el ends here
