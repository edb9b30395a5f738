;;; qwen-companion-chat-test.el --- Tests of the chat  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What a chat shows of what the Python process reports, and what it asks.
;; The real daemon has its part in tests/e2e.

;;; Code:

(require 'qwen-companion-chat-test-helper)

;;; Opening one

(ert-deftest qwen-companion-chat-test-off-says-what-to-do ()
  (qwen-companion-test-with-backend
    (let ((qwen-companion-daemon-enabled nil))
      (qwen-companion-test-refused "customize .qwen-companion-daemon-enabled"
        (call-interactively #'qwen-companion-chat)))
    (let ((qwen-companion-daemon-enabled t))
      (qwen-companion-test-refused "turn on .qwen-companion-mode"
        (call-interactively #'qwen-companion-chat)))
    (should-not (qwen-companion-chat-buffers))))

(ert-deftest qwen-companion-chat-test-text-before-the-reply-is-not-lost ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat t)
    (qwen-companion-chat-test-tell 'daemon-session :session "other" :state 'busy)
    (qwen-companion-chat-test-reply 'daemon-open :session "other")
    (should (eq 'busy (plist-get (buffer-local-value 'qwen-companion-chat-session
                                                     (qwen-companion-chat-buffer "other"))
                                 :state)))))

(ert-deftest qwen-companion-chat-test-no-session-is-said ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat t)
    (qwen-companion-chat-test-reply 'daemon-open :error "too many sessions" :problem 'busy)
    (should (string-match-p "too many sessions" (qwen-companion-test-header)))
    (insert "hello")
    (should-error (qwen-companion-chat-send) :type 'user-error)
    (should (equal "hello" (qwen-companion-chat-test-prompt)))))

(ert-deftest qwen-companion-chat-test-shows-the-last-one ()
  (qwen-companion-chat-test-with
    (let ((chat (current-buffer)))
      (with-temp-buffer
        (set-window-buffer nil (current-buffer))
        (call-interactively #'qwen-companion-chat))
      (should (eq chat (window-buffer)))
      (should (= 1 (length (qwen-companion-test-sent 'daemon-open)))))))

;;; The conversation

(ert-deftest qwen-companion-chat-test-changes-of-a-turn-are-shown ()
  "The changes that are told of a turn, and the text of the chat then."
  (pcase-dolist (`(,shown . ,changes)
                 `(("\n\fYou\nWhat is it?\n\nA greeting.\n"
                    ,(qwen-companion-chat-test-text 'user "What is it?" :by 'me)
                    ,(qwen-companion-chat-test-text 'answer "A gree")
                    ,(qwen-companion-chat-test-text 'answer "ting."))
                   ;; Two turns and two agents do not mix.
                   (,(concat "running   Agent A\n\nfrom a, again\n"
                             "running   Agent B\n\nfrom b\n"
                             "\nThe end.\n"
                             "\n\fSomebody else\nAnd I?\n")
                    (:kind tool :turn "t1" :id "a" :status running :title "Agent A")
                    (:kind tool :turn "t1" :id "b" :status running :title "Agent B")
                    ,(qwen-companion-chat-test-text 'answer "from a" :parent "a")
                    ,(qwen-companion-chat-test-text 'answer "from b" :parent "b")
                    (:kind text :turn "t2" :voice user :by other :text "And I?")
                    ,(qwen-companion-chat-test-text 'answer ", again" :parent "a")
                    ,(qwen-companion-chat-test-text 'answer "The end."))
                   ;; A message in the background stands alone.
                   ("\nOne.\n\nMeanwhile.\n\nTwo.\n"
                    ,(qwen-companion-chat-test-text 'answer "One.")
                    ,(qwen-companion-chat-test-text 'answer "Meanwhile." :background t)
                    ,(qwen-companion-chat-test-text 'answer "Two."))
                   ;; Incomplete text says so.
                   (,(concat "120 earlier events are not shown\n"
                             "\n\fYou\nOne\n"
                             "The session was rewound to the end of turn 1; everything after it is forgotten\n"
                             "The session was rewound to its beginning; everything above is forgotten\n")
                    (:kind note :turn nil :note truncated :text "120")
                    ,(qwen-companion-chat-test-text 'user "One" :by 'me)
                    (:kind note :turn nil :note rewound :text "1")
                    (:kind note :turn nil :note rewound :text "0"))
                   ;; How turns end.
                   ("" (:kind end :turn "t1" :outcome done))
                   ("Cancelled\n" (:kind end :turn "t1" :outcome cancelled))
                   ("Failed: no model
The agent still has this prompt, and may carry it out with the next one; C-c C-r goes back to before it
" (:kind end :turn "t1" :outcome failed :text "no model"))
                   ("Removed from the queue\n" (:kind end :turn "t1" :outcome removed))
                   ("Removed from the queue: not this\n"
                    (:kind end :turn "t1" :outcome removed :text "not this"))
                   ("Ended: refusal\n" (:kind end :turn "t1" :outcome other :text "refusal"))))
    (qwen-companion-chat-test-with
      (should (eq (current-buffer) (qwen-companion-chat-buffer "s")))
      (apply #'qwen-companion-chat-test-turn changes)
      (should (equal shown (qwen-companion-chat-test-conversation))))))

(ert-deftest qwen-companion-chat-test-unsupported-events-are-named ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     '(:kind note :turn "t1" :note unsupported :text "goal_changed")
     '(:kind hologram :turn "t1"))
    (should (string-match-p "Unsupported: goal_changed;.*\nUnsupported: hologram;"
                            (qwen-companion-chat-test-conversation)))))

(ert-deftest qwen-companion-chat-test-notes-without-a-turn-are-at-the-end ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     '(:kind note :note setting :text "one")
     (qwen-companion-chat-test-text 'answer "Answer.")
     '(:kind note :note setting :text "two"))
    (should (string-match-p "one\n\nAnswer\\.\n.*two\n\\'" (qwen-companion-chat-test-conversation)))))

(ert-deftest qwen-companion-chat-test-an-unreadable-text-does-not-stop-the-others ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-tell 'daemon-reset :session "s" :batches 1)
    (qwen-companion-test-said "cannot be shown"
      (qwen-companion-chat-test-turn
       '(:kind text :turn "t1" :voice thought :text-file "/etc/hostname")
       (qwen-companion-chat-test-text 'answer "Answer.")))
    (should (equal "\nAnswer.\n" (qwen-companion-chat-test-conversation)))
    (should-not (string-match-p "reading" (qwen-companion-test-header)))))

(ert-deftest qwen-companion-chat-test-a-text-by-file-is-read-and-removed ()
  (qwen-companion-chat-test-with
    (let ((file (qwen-companion-spool-write "long" 'utf-8-unix)))
      (qwen-companion-chat-test-turn (list :kind 'text :turn "t1" :voice 'answer :text-file file))
      (should (equal "\nlong\n" (qwen-companion-chat-test-conversation)))
      (should-not (file-exists-p file)))))

(ert-deftest qwen-companion-chat-test-texts-for-nobody-are-removed ()
  (qwen-companion-chat-test-with
    (let ((files (cl-loop repeat 2 collect
                          (qwen-companion-spool-write "long" 'utf-8-unix))))
      (qwen-companion-chat-test-tell
       'daemon-turn :session "unknown"
       :changes (list (list :kind 'text :voice 'answer :text-file (car files))))
      (qwen-companion-chat-test-tell
       'daemon-text :session "s" :tool "x" :part 'output :index 0 :text-file (cadr files))
      (should-not (cl-some #'file-exists-p files)))))

(ert-deftest qwen-companion-chat-test-conversation-is-read-only-and-the-prompt-is-not ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "Answer.")
    (dolist (place (list (point-min) (+ 2 (point-min)) qwen-companion-chat-blocks-conversation-end))
      (goto-char place)
      (should-error (insert "x") :type 'text-read-only))
    (qwen-companion-test-append "mine")
    (should (equal "mine" (qwen-companion-chat-test-prompt)))))

(ert-deftest qwen-companion-chat-test-nobody-can-look-like-a-heading ()
  "Untrusted text has no form feed; a line that looks like a heading is no turn."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     (qwen-companion-chat-test-text 'user "One" :by 'me)
     (qwen-companion-chat-test-text 'answer "x\n\nYou\nSomething else"))
    (should (equal '("One") (mapcar #'car (funcall imenu-create-index-function))))))

;;; Point, windows, undo

(ert-deftest qwen-companion-chat-test-point-stays-when-text-arrives ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     (qwen-companion-chat-test-text 'answer (mapconcat #'number-to-string (number-sequence 1 99) "\n"))
     '(:kind tool :turn "t1" :id "x" :status running :title "Run it" :output "1\n2\n"))
    (qwen-companion-test-append "half a prom")
    (backward-char 4)
    (let ((away (split-window)))
      (qwen-companion-test-go-to "\n50\n")
      (set-window-start away (point))
      (search-forward "55")
      (set-window-point away (point))
      (goto-char (- (point-max) 4))
      (qwen-companion-chat-test-turn
       '(:kind tool :turn "t1" :id "x" :status done :title "Run it" :output "1\n2\n3\n4\n")
       (qwen-companion-chat-test-text 'answer "More.\nAnd more."))
      (should (looking-at "prom\\'"))
      (should (equal "51\n52" (buffer-substring (window-start away) (+ 5 (window-start away)))))
      (should (equal "55" (buffer-substring (- (window-point away) 2) (window-point away)))))))

(ert-deftest qwen-companion-chat-test-a-window-that-begins-with-the-prompt-follows-new-text ()
  "A window scrolled inside a long prompt stays where it is."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "One.\n")
    (set-window-start nil qwen-companion-chat-blocks-prompt-start)
    (let ((end (marker-position qwen-companion-chat-blocks-conversation-end)))
      (qwen-companion-chat-test-turn (qwen-companion-chat-test-text 'user "Two?"))
      (should (= end (window-start))))
    (insert "long\nprompt\n")
    (set-window-start nil (- (point-max) 7))
    (qwen-companion-chat-test-say "Two.\n")
    (should (= (- (point-max) 7) (window-start)))))

(ert-deftest qwen-companion-chat-test-point-in-a-tool-that-changes ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn
     '(:kind tool :turn "t1" :id "x" :status running :title "Run it" :output "one\ntwo\n"))
    (qwen-companion-test-go-to "tw")
    (qwen-companion-chat-test-turn
     '(:kind tool :turn "t1" :id "x" :status done :title "Run it" :started 0 :ended 100
             :output "one\ntwo\nthree\n"))
    (should (looking-back "one\ntw" (point-min)))))

(ert-deftest qwen-companion-chat-test-undo-in-the-prompt-while-it-streams ()
  (qwen-companion-chat-test-with
    (buffer-enable-undo)
    (insert "first")
    (undo-boundary)
    (qwen-companion-chat-test-say "A long answer.")
    (insert " second")
    (undo-boundary)
    (qwen-companion-chat-test-say " And more.")
    (delete-char -3)
    (undo-boundary)
    (qwen-companion-chat-test-turn
     '(:kind tool :turn "t1" :id "x" :status running :title "Run it")
     (qwen-companion-chat-test-text 'answer "So."))
    (let ((conversation (qwen-companion-chat-test-conversation)))
      (dolist (expected '("first second" "first" ""))
        (let ((last-command (if (equal expected "first second") 'other 'undo))
              ;; Undoing sets it, and nobody would set it back here.
              this-command)
          (undo))
        (should (equal expected (qwen-companion-chat-test-prompt))))
      (should (equal conversation (qwen-companion-chat-test-conversation))))))

(ert-deftest qwen-companion-chat-test-narrowed-and-selected ()
  "New text ends neither a narrowing nor a selection."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "One\nTwo\nThree")
    (qwen-companion-test-go-to "Two")
    (set-mark (point))
    (setq mark-active t)
    (narrow-to-region (line-beginning-position) (line-end-position))
    (qwen-companion-chat-test-turn (qwen-companion-chat-test-text 'answer ", four")
                                   (qwen-companion-chat-test-text 'thought "Hm."))
    (should (equal "Two" (buffer-string)))
    (should mark-active)
    (widen)
    (should (string-suffix-p "Three, four\nThought\nHm.\n" (qwen-companion-chat-test-conversation)))))

;;; Reading it again

(ert-deftest qwen-companion-chat-test-reset-doubles-nothing-and-keeps-the-place ()
  (qwen-companion-chat-test-with
    (let ((turn (list (qwen-companion-chat-test-text 'user "Why?" :by 'me)
                      (qwen-companion-chat-test-text 'thought "Hm.\nHm.")
                      (qwen-companion-chat-test-text 'answer "Because.\nOf that.\nAnd this.")))
          before)
      (apply #'qwen-companion-chat-test-turn turn)
      (insert "unsent")
      (setq before (qwen-companion-chat-test-conversation))
      (qwen-companion-test-go-to "Hm.")
      (qwen-companion-chat-toggle-fold)
      (search-forward "Of")
      (set-window-point nil (point))
      (call-interactively #'qwen-companion-chat-reload)
      (should (= 1 (length (qwen-companion-test-sent 'daemon-load))))
      (qwen-companion-chat-test-tell 'daemon-reset :session "s" :batches 2)
      (should (equal "" (qwen-companion-chat-test-conversation)))
      (should (string-match-p "reading" (qwen-companion-test-header)))
      (qwen-companion-chat-test-turn (car turn) (cadr turn))
      (qwen-companion-chat-test-turn (caddr turn))
      (should-not (string-match-p "reading" (qwen-companion-test-header)))
      (should (equal before (qwen-companion-chat-test-conversation)))
      (should (equal "unsent" (qwen-companion-chat-test-prompt)))
      (should (save-excursion (goto-char (window-point)) (looking-back "Of" (point-min))))
      ;; It was opened by the user.
      (qwen-companion-test-go-to "Hm.")
      (should-not (invisible-p (point))))))

(ert-deftest qwen-companion-chat-test-reset-to-nothing ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "Old.")
    (goto-char (point-min))
    (should (equal "qwen-companion: it was cut"
                   (qwen-companion-test-messages
                     (qwen-companion-chat-test-tell
                      'daemon-reset :session "s" :batches 0 :text "it was cut"))))
    (should (equal "" (qwen-companion-chat-test-conversation)))
    (qwen-companion-chat-test-say "New.")
    (should (equal "\nNew.\n" (qwen-companion-chat-test-conversation)))))

;;; The prompt

(ert-deftest qwen-companion-chat-test-sends-the-prompt ()
  (qwen-companion-chat-test-with
    (insert "one\ntwo\n")
    (call-interactively #'qwen-companion-chat-send)
    (should (equal '((:kind text :text "one\ntwo"))
                   (plist-get (car (qwen-companion-test-sent 'daemon-prompt)) :parts)))
    (should (equal "" (qwen-companion-chat-test-prompt)))
    (qwen-companion-chat-test-reply 'daemon-prompt :turn "t1")
    (should (equal "" (qwen-companion-chat-test-prompt)))
    (qwen-companion-test-refused "empty" (qwen-companion-chat-send))
    (should (= 1 (length (qwen-companion-test-sent 'daemon-prompt))))))

(ert-deftest qwen-companion-chat-test-a-prompt-that-is-not-taken-comes-back ()
  (dolist (problem '(busy gone invalid refused unreachable unsure unsupported unknown))
    (qwen-companion-chat-test-with
      (insert "precious")
      (qwen-companion-chat-send)
      (insert "meanwhile")
      (let ((said (qwen-companion-test-messages
                    (qwen-companion-chat-test-reply 'daemon-prompt :error "It failed." :problem problem))))
        (should (string-match-p "It failed\\." said))
        (should (eq (eq problem 'unsure) (and (string-match-p "may have been sent" said) t))))
      (should (equal "precious\nmeanwhile" (qwen-companion-chat-test-prompt)))
      ;; Nothing is sent by itself.
      (should (= 1 (length (qwen-companion-test-sent 'daemon-prompt)))))))

(ert-deftest qwen-companion-chat-test-a-prompt-for-a-dead-session-stays ()
  (dolist (state '(closed dead))
    (qwen-companion-chat-test-with
      (qwen-companion-chat-test-session :state state :text "it crashed")
      (should (string-match-p "loads the session again: it crashed" (qwen-companion-test-header)))
      (insert "precious")
      (qwen-companion-test-refused "C-c C-l" (qwen-companion-chat-send))
      (should (equal "precious" (qwen-companion-chat-test-prompt)))
      (should-not (qwen-companion-test-sent 'daemon-prompt)))))

(ert-deftest qwen-companion-chat-test-a-prompt-comes-back-when-the-backend-or-daemon-ends ()
  (dolist (end (list (lambda () (run-hooks 'qwen-companion-backend-disconnected-hook))
                     #'qwen-companion-daemon-stop))
    (qwen-companion-chat-test-with
      (insert "precious")
      (qwen-companion-chat-send)
      (funcall end)
      (should (equal "precious" (qwen-companion-chat-test-prompt))))))

(ert-deftest qwen-companion-chat-test-a-prompt-that-is-not-sent-comes-back ()
  "It cannot be told, or there is no room for it."
  (qwen-companion-chat-test-with
    (insert "precious")
    (cl-letf (((symbol-function 'qwen-companion-backend-call) #'ignore))
      (qwen-companion-chat-send))
    (should (equal "precious" (qwen-companion-chat-test-prompt)))
    (cl-letf (((symbol-function 'qwen-companion-spool-pack)
               (lambda (_) (signal 'file-error '("No space left on device")))))
      (should-error (qwen-companion-chat-send) :type 'file-error))
    (should (equal "precious" (qwen-companion-chat-test-prompt)))))

(ert-deftest qwen-companion-chat-test-return-as-the-user-wants ()
  (qwen-companion-chat-test-with
    (insert "one")
    (call-interactively #'qwen-companion-chat-return)
    (should (equal "one\n" (qwen-companion-chat-test-prompt)))
    (let ((qwen-companion-chat-return 'send))
      (call-interactively #'qwen-companion-chat-return))
    (should (qwen-companion-test-sent 'daemon-prompt))
    (goto-char (point-min))
    (should-error (qwen-companion-chat-return) :type 'user-error)))

(defmacro qwen-companion-chat-test-with-history (&rest body)
  "Run BODY in a chat where \"one\" and \"two\" were sent and \"draft\" is typed.
The function `steps' takes commands, each with the prompt that it brings."
  (declare (indent 0) (debug t))
  `(qwen-companion-chat-test-with
     (dolist (prompt '("one" "two"))
       (insert prompt)
       (qwen-companion-chat-send))
     (insert "draft")
     (cl-flet ((steps (&rest steps)
                 (cl-loop for (command prompt) on steps by #'cddr
                          do (call-interactively command)
                          (should (equal prompt (qwen-companion-chat-test-prompt))))))
       ,@body)))

(ert-deftest qwen-companion-chat-test-history ()
  (qwen-companion-chat-test-with-history
    (steps #'qwen-companion-chat-previous-prompt "two" #'qwen-companion-chat-previous-prompt "one"
           #'qwen-companion-chat-next-prompt "two" #'qwen-companion-chat-next-prompt "draft")
    (should-error (qwen-companion-chat-next-prompt) :type 'user-error)
    (should-error (qwen-companion-chat-previous-prompt 3) :type 'user-error)
    (should (equal "draft" (qwen-companion-chat-test-prompt)))
    (qwen-companion-chat-search-prompt "one")
    (should (equal "one" (qwen-companion-chat-test-prompt)))))

(ert-deftest qwen-companion-chat-test-edits-of-the-history-stay ()
  (qwen-companion-chat-test-with-history
    (qwen-companion-chat-previous-prompt)
    (insert " and more")
    (steps #'qwen-companion-chat-previous-prompt "one"
           #'qwen-companion-chat-next-prompt "two and more"
           #'qwen-companion-chat-next-prompt "draft"
           #'qwen-companion-chat-previous-prompt "two and more")
    (qwen-companion-chat-search-prompt "one")
    (insert " anew")
    ;; What is edited and not sent comes before it in the history.
    (qwen-companion-chat-send)
    (dolist (text '("one anew" "draft" "two and more" "two" "one"))
      (steps #'qwen-companion-chat-previous-prompt text))
    (insert " again")
    (qwen-companion-chat-next-prompt)
    (let (kill-buffer-query-functions)
      (kill-buffer))
    (should (member "one again" (ring-elements qwen-companion-chat-send--history)))))

(ert-deftest qwen-companion-chat-test-cancel ()
  (qwen-companion-chat-test-with
    (qwen-companion-test-refused "idle" (qwen-companion-chat-cancel))
    (dolist (state '(busy waiting))
      (qwen-companion-chat-test-session :state state)
      (call-interactively #'qwen-companion-chat-cancel))
    (should (equal '("s" "s") (mapcar (lambda (payload) (plist-get payload :session))
                                      (qwen-companion-test-sent 'daemon-cancel))))
    (qwen-companion-test-said "too late"
      (qwen-companion-chat-test-reply 'daemon-cancel :error "too late"))))

(ert-deftest qwen-companion-chat-test-a-suggestion-is-taken-by-its-button ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-turn '(:kind note :turn "t1" :note suggestion :text "run the tests"))
    (qwen-companion-test-go-to "run the")
    (call-interactively (lookup-key (get-text-property (point) 'keymap) (kbd "RET")))
    (should (equal "run the tests" (qwen-companion-chat-test-prompt)))
    (should-not (qwen-companion-test-sent 'daemon-prompt))))

;;; Help

(ert-deftest qwen-companion-chat-test-help-names-keys-that-work ()
  "The help also says how to reach files and tools."
  (let ((help (substring-no-properties
               (substitute-command-keys (documentation 'qwen-companion-chat-mode)))))
    (should (string-search "those of the\ndaemon" help))
    ;; Without a key of its own, a command is named.
    (should-not (string-search "M-x" help))
    (qwen-companion-chat-test-with
      (let (keys)
        (with-temp-buffer
          (insert help)
          (goto-char (point-min))
          (while (re-search-forward "^\\([^ \t\n][^\t\n]*\\)\t" nil t)
            (setq keys (append keys (split-string (match-string 1) ", ")))))
        (should (> (length keys) 20))
        (qwen-companion-chat-test-say "Hi")
        (goto-char (point-min))
        (dolist (key keys)
          (should (commandp (key-binding (kbd key)))))))))

(ert-deftest qwen-companion-chat-test-menu-has-commands ()
  "Commands that need a feature of the daemon are there only with that feature."
  (qwen-companion-chat-test-with
    (let (commands)
      (map-keymap (lambda (_ item)
                    (pcase item
                      (`(menu-item ,_ ,(and command (pred identity)) . ,_)
                       (push command commands))))
                  qwen-companion-chat-mode-menu)
      (should (memq 'qwen-companion-chat-send commands))
      (dolist (command commands)
        (should (commandp command))))
    (let ((cancel (lambda ()
                    (eval (plist-get (nthcdr 4 (assq 'Cancel (cdr qwen-companion-chat-mode-menu)))
                                     :enable)
                          t))))
      (should-not (funcall cancel))
      (qwen-companion-chat-test-session :state 'busy)
      (should (funcall cancel)))))

;;; Header and mode line

(ert-deftest qwen-companion-chat-test-header-and-mode-line ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-tell
     'daemon-choices :session "s" :modes '((:id "auto-edit" :name "Auto-edit")))
    (qwen-companion-chat-test-session :state 'busy :model "m%1" :mode "auto-edit"
                                      :used 12345 :size 200000 :clients 2 :queue '((:turn "t2" :text "x" :by me)))
    (qwen-companion-chat-test-turn '(:kind usage :turn "t1" :input 900 :output 45))
    (dolist (part '("On this machine" "127.0.0.1:4170" "/project" "context 12.3k of 200k (6%)"
                    "900 in, 45 out" "2 clients" "1 queued"))
      (should (string-match-p (regexp-quote part) (qwen-companion-test-header))))
    (should (equal " busy m%1 Auto-edit" (qwen-companion-chat-test-mode-line)))
    (qwen-companion-chat-test-daemon :state 'connected :host "example.org" :workspace "/srv")
    (should (qwen-companion-test-header-p "\\` busy 0:00  1 queued  context 12.3k.* At example.org: files, tools and keys are those of its machine"))))

(ert-deftest qwen-companion-chat-test-calls-for-attention ()
  "A question, an end and a failure are told where the user looks elsewhere."
  (qwen-companion-chat-test-with
    (let* ((events nil)
           (qwen-companion-attention-seconds 0)
           (qwen-companion-attention-functions
            (list (lambda (event)
                    (push (list (qwen-companion-event-kind event)
                                (replace-regexp-in-string "[0-9]+ s" "N s" (qwen-companion-event-text event)))
                          events))))
           (state (lambda (state) (qwen-companion-chat-test-session :state state)))
           (chat (current-buffer)))
      (funcall state 'busy)
      (should qwen-companion-chat--clock)
      ;; Time goes by on the screen.
      (setq qwen-companion-chat--began (- (float-time) 83))
      (qwen-companion-chat--tick)
      (should (string-match-p "\\` busy [12]:[0-9][0-9]" (qwen-companion-test-header)))
      (funcall state 'waiting)
      ;; In batch mode no frame has the focus.
      (setq events nil)
      (with-temp-buffer
        (save-window-excursion
          (set-window-buffer nil (current-buffer))
          (dolist (next '(busy waiting busy idle))
            (funcall state next))
          (should-not qwen-companion-chat--clock)
          (funcall state 'busy)
          (qwen-companion-chat-test-turn '(:kind end :turn "t1" :outcome failed :text "no model"))
          (funcall state 'idle)
          (funcall state 'busy)
          (funcall state 'dead)))
      (should (equal '((asks "*qwen chat* asks")
                       (done "*qwen chat* is done after N s")
                       (failed "*qwen chat* failed: no model")
                       (gone "*qwen chat* has ended in the middle of a turn"))
                     (nreverse events)))
      (should-not qwen-companion-chat--clock)
      (funcall state 'busy)
      (with-current-buffer chat (kill-buffer))
      (should-not qwen-companion-chat--clock))))

(ert-deftest qwen-companion-chat-test-header-starts-with-the-state-in-a-narrow-window ()
  "State, queue and context come first; in a mismatch, the owner of the files."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-daemon :state 'connected :host "127.0.0.1:40170" :local t
                                     :workspace (concat "/srv/" (make-string 100 ?x) "/deep/project"))
    (qwen-companion-chat-test-session :state 'disconnected :text (make-string 70 ?y)
                                      :used 12345 :size 200000)
    (should (qwen-companion-test-header-p "\\` On this machine (127.0.0.1:40170)  Disconnected: y"))
    (qwen-companion-chat-test-session :state 'idle :used 12345 :size 200000)
    (should (qwen-companion-test-header-p "\\` idle  context 12.3k.*  On this machine (127.0.0.1:40170)  .*/deep/project"))
    (should (string-search "context 12.3k of 200k" (substring (qwen-companion-test-header) 0 80)))
    (should (string-search "/srv/x" (get-text-property (string-search "On this" (qwen-companion-test-header))
                                                       'help-echo (qwen-companion-test-header))))))

(ert-deftest qwen-companion-chat-test-a-workspace-that-looks-remote-is-no-file ()
  "Its name comes from the daemon: shortening it must not connect anywhere."
  (qwen-companion-chat-test-with
    (let ((file-name-handler-alist (list (cons "." (lambda (&rest _) (error "Touched"))))))
      (qwen-companion-chat-test-daemon :state 'connected :host "127.0.0.1:4170" :local t
                                       :workspace "/ssh:example.org:/srv/it"))
    (should (string-search "/srv/it" (qwen-companion-test-header)))))

(ert-deftest qwen-companion-chat-test-goes-on-in-a-copy ()
  "The copy is shown where it was asked for, and read from the daemon."
  (qwen-companion-chat-test-with
    (let ((chat (current-buffer)))
      (qwen-companion-chat-test-say "Said.")
      (call-interactively (key-binding (kbd "C-c C-f")))
      (should (equal "s" (plist-get (car (qwen-companion-test-sent 'daemon-fork)) :session)))
      (qwen-companion-chat-test-reply 'daemon-fork :error "The daemon cannot fork a conversation."
                                      :problem 'unsupported)
      (should (equal (list chat) (qwen-companion-chat-buffers)))
      (qwen-companion-chat-fork)
      (qwen-companion-chat-test-reply 'daemon-fork :session "copy")
      (should (eq (qwen-companion-chat-buffer "copy") (window-buffer)))
      (should (equal "copy" (plist-get (car (last (qwen-companion-test-sent 'daemon-load)))
                                       :session)))
      (should (string-search "Said." (with-current-buffer chat
                                       (qwen-companion-chat-test-conversation))))
      ;; Elsewhere, the window is left alone.
      (with-current-buffer chat (qwen-companion-chat-fork))
      (qwen-companion-chat-test-reply 'daemon-fork :session "another")
      (should (eq (qwen-companion-chat-buffer "copy") (window-buffer)))
      (should (qwen-companion-chat-buffer "another")))))

;;; Rewinding

(ert-deftest qwen-companion-chat-test-goes-back-to-before-the-prompt-at-point ()
  "The prompt comes back above one that was begun; the copy can be opened."
  (qwen-companion-chat-test-with
    (let ((chat (current-buffer))
          (turns (list (list :id "j" :root "/project" :session "real" :conversation "s"
                             :who 'agent :source 'chat :prompt "Two" :start 2003 :end 1))))
      (cl-letf (((symbol-function 'qwen-companion-journal-turns) (lambda () turns))
                ((symbol-function 'qwen-companion-journal-watched-p) #'always))
        (dolist (number '(1 2 3))
          (let ((text (nth number '("" "One" "Two" "Three"))))
            (qwen-companion-chat-test-turn
             (list :kind 'text :turn text :voice 'user :text text :time (* 1000 number))
             (list :kind 'text :turn text :voice 'answer :text "Said."))))
        (qwen-companion-chat-test-type "begun")
        (goto-char (point-min))
        (search-forward "Two")
        (qwen-companion-test-answering t
          (call-interactively (key-binding (kbd "C-c C-r"))))
        (should (equal '("s" . "Two")
                       (let ((sent (car (qwen-companion-test-sent 'daemon-rewind))))
                         (cons (plist-get sent :session) (plist-get sent :turn)))))
        (qwen-companion-chat-test-reply 'daemon-rewind :session "copy")
        (should (equal "Two\nbegun" (qwen-companion-chat-test-prompt)))
        (should (member '(:conversation "s" :since 1900 :copy "chat:copy" :begins nil)
                        (qwen-companion-test-sent 'journal-rewound)))
        (run-hook-with-args-until-success 'qwen-companion-rewind-return-functions "chat:copy")
        (should (eq (qwen-companion-chat-buffer "copy") (window-buffer)))
        ;; While a turn runs nothing is done.
        (set-buffer chat)
        (qwen-companion-chat-test-session :state 'busy)
        (goto-char (point-min))
        (search-forward "One")
        (should-error (call-interactively #'qwen-companion-rewind) :type 'user-error)
        (should (= 1 (length (qwen-companion-test-sent 'daemon-rewind))))
        (qwen-companion-chat-test-session :state 'idle)))))

(ert-deftest qwen-companion-chat-test-a-rewind-that-is-refused ()
  "The prompt being edited stays as it is."
  (qwen-companion-chat-test-with
    (cl-letf (((symbol-function 'qwen-companion-journal-watched-p) #'always))
      (qwen-companion-chat-test-turn
       (list :kind 'text :turn "One" :voice 'user :text "One" :time 1000))
      (qwen-companion-chat-test-type "begun")
      (goto-char (point-min))
      (qwen-companion-test-answering t
        (call-interactively #'qwen-companion-rewind))
      (should (string-match-p
               "Rewinding the conversation failed: It was compressed"
               (qwen-companion-test-messages
                 (qwen-companion-chat-test-reply 'daemon-rewind :error "it was compressed."
                                                 :problem 'invalid))))
      (should (equal "begun" (qwen-companion-chat-test-prompt))))))

;;; Moving

(ert-deftest qwen-companion-chat-test-turn-by-turn ()
  (qwen-companion-chat-test-with
    (dolist (text '("One" "Two"))
      (qwen-companion-chat-test-turn
       (list :kind 'text :turn text :voice 'user :text text)
       (list :kind 'text :turn text :voice 'answer :text "Answer.")))
    (goto-char (point-min))
    (qwen-companion-chat-next-turn)
    (should (looking-at "\fYou\nOne"))
    (qwen-companion-chat-next-turn)
    (should (looking-at "\fYou\nTwo"))
    (qwen-companion-chat-previous-turn)
    (should (looking-at "\fYou\nOne"))
    (should-error (qwen-companion-chat-previous-turn) :type 'user-error)
    (qwen-companion-chat-next-turn 5)
    (should (eobp))
    ;; As typed: Emacs may move point after a command.
    (execute-kbd-macro (kbd "C-c C-p"))
    (should (looking-at "\fYou\nTwo"))
    (pcase-dolist (`(,name . ,place) (funcall imenu-create-index-function))
      (goto-char place)
      (should (looking-at (concat "\fYou\n" name))))
    (outline-minor-mode)
    (outline-previous-visible-heading 1)
    (should (looking-at "\fYou\nOne"))))

;;; Coming and going

(ert-deftest qwen-companion-chat-test-a-new-process-is-told-of-open-sessions ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "Before.")
    (run-hooks 'qwen-companion-backend-disconnected-hook)
    (should (string-match-p "Disconnected" (qwen-companion-test-header)))
    (qwen-companion-chat-test-daemon :state 'connecting)
    (should-not (qwen-companion-test-sent 'daemon-load))
    (dotimes (_ 2)
      (qwen-companion-chat-test-daemon :state 'connected))
    (should (equal '("s") (mapcar (lambda (payload) (plist-get payload :session))
                                  (qwen-companion-test-sent 'daemon-load))))
    (should (string-match-p "Before\\." (qwen-companion-chat-test-conversation)))))

(ert-deftest qwen-companion-chat-test-a-new-process-gets-interrupted-turns-from-emacs ()
  "A turn that has not ended well, as it was shown."
  (qwen-companion-chat-test-with
    (let ((said (lambda (turn voice text) (list :kind 'text :turn turn :voice voice :text text)))
          (end (lambda (turn outcome) (list :kind 'end :turn turn :outcome outcome)))
          (tool '(:kind tool :turn "t3" :id "x" :status running)))
      (cl-labels ((sent ()
                    (run-hooks 'qwen-companion-backend-disconnected-hook)
                    (qwen-companion-chat-test-daemon :state 'connected)
                    (plist-get (car (last (qwen-companion-test-sent 'daemon-load))) :shown)))
        (qwen-companion-chat-test-turn
         (funcall said "t1" 'user "one") (funcall said "t1" 'answer "whole") (funcall end "t1" 'done)
         (funcall said "t2" 'user "two") (funcall said "t2" 'answer "ha") (funcall end "t2" 'failed)
         (funcall said "t3" 'user "three") (funcall said "t3" 'answer "pie"))
        (qwen-companion-chat-test-turn (funcall said "t3" 'answer "ces") tool
                                       (funcall said "t3" 'answer "more"))
        (should (equal (sort (mapcar (lambda (change) (format "%S" (or (plist-get change :text) change)))
                                     (sent))
                             #'string<)
                       (sort (mapcar (lambda (item) (format "%S" item))
                                     (list "two" "ha" (funcall end "t2" 'failed)
                                           "three" "pieces" tool "more"))
                             #'string<)))
        ;; What the daemon tells anew replaces it; of what has ended without a word, nothing is kept.
        (qwen-companion-chat-test-tell 'daemon-reset :session "s" :batches 1)
        (qwen-companion-chat-test-turn (funcall said "t4" 'user "four"))
        (qwen-companion-chat-test-session :state 'idle)
        (should-not (sent))))))

(ert-deftest qwen-companion-chat-test-a-connection-that-mends-itself-is-left-to-do-so ()
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-session :state 'disconnected :text "no answer")
    (should (string-match-p "no answer" (qwen-companion-test-header)))
    (qwen-companion-chat-test-daemon :state 'unreachable :text "no answer")
    (qwen-companion-chat-test-daemon :state 'connected)
    (should-not (qwen-companion-test-sent 'daemon-load))))

(ert-deftest qwen-companion-chat-test-left-and-readable ()
  "With the daemon left or the mode off, the text stays and nothing else."
  (dolist (end (list #'qwen-companion-daemon-stop
                     (lambda () (run-hook-with-args 'qwen-companion-state-functions 'off))))
    (qwen-companion-chat-test-with
      (let ((timers (length timer-list)))
        (qwen-companion-chat-test-say "Readable.")
        (funcall end)
        (should (string-match-p "Readable" (qwen-companion-chat-test-conversation)))
        (should (string-match-p "Disconnected from the daemon" (qwen-companion-test-header)))
        (insert "precious")
        (should-error (qwen-companion-chat-send) :type 'user-error)
        (should-error (qwen-companion-chat-reload) :type 'user-error)
        (should-not qwen-companion-daemon-functions)
        (should-not qwen-companion-daemon-disconnected-hook)
        (should-not qwen-companion-backend-disconnected-hook)
        (should-not qwen-companion-chat-state--requests)
        (should (= timers (length timer-list)))
        ;; And back again.
        (call-interactively #'qwen-companion-chat)
        (qwen-companion-chat-test-daemon :state 'connected)
        (should (equal "precious" (qwen-companion-chat-test-prompt)))
        (should (= 1 (length (qwen-companion-test-sent 'daemon-load))))))))

(ert-deftest qwen-companion-chat-test-a-session-that-cannot-be-loaded-again ()
  (qwen-companion-chat-test-with
    (run-hooks 'qwen-companion-backend-disconnected-hook)
    (qwen-companion-chat-test-daemon :state 'connected)
    (qwen-companion-chat-test-reply 'daemon-load :error "No such session." :problem 'gone)
    (should (qwen-companion-test-header-p "M-x qwen-companion-chat here tries again: No such session"))
    (call-interactively #'qwen-companion-chat)
    (should (= 2 (length (qwen-companion-test-sent 'daemon-load))))))

(ert-deftest qwen-companion-chat-test-a-daemon-that-has-ended ()
  "It is said, and the next one has the chats again, however it is had."
  (qwen-companion-chat-test-with
    (insert "precious")
    (qwen-companion-chat-test-session :state 'disconnected)
    (qwen-companion-chat-test-daemon :state 'refused :text "qwen serve has ended.")
    (should (qwen-companion-test-header-p "M-x qwen-companion-chat here tries again: qwen serve has ended"))
    (call-interactively #'qwen-companion-chat)
    (should (= 2 (length (qwen-companion-test-sent 'daemon-connect))))
    (qwen-companion-chat-test-daemon :state 'connected)
    (should (= 1 (length (qwen-companion-test-sent 'daemon-load))))
    (should (equal "precious" (qwen-companion-chat-test-prompt)))))

(ert-deftest qwen-companion-chat-test-after-a-new-token ()
  "A session that ended because its token was refused is loaded by the next connection."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-session :state 'dead :text "no")
    (qwen-companion-chat-test-daemon :state 'refused :text "no")
    (call-interactively #'qwen-companion-chat)
    (should-not (string-match-p "Left\\|Ended" (qwen-companion-test-header)))
    (qwen-companion-chat-test-daemon :state 'connected)
    (should (= 1 (length (qwen-companion-test-sent 'daemon-load))))))

(ert-deftest qwen-companion-chat-test-the-daemon-is-had-again-as-before ()
  "It reconnects in the same way and directory, whatever buffer is current."
  (qwen-companion-chat-test-with
    (let ((root (plist-get (car (qwen-companion-test-sent 'daemon-connect)) :root)))
      (qwen-companion-daemon-stop)
      (let ((default-directory "/"))
        (call-interactively #'qwen-companion-chat))
      (should (equal (list root root)
                     (mapcar (lambda (payload) (plist-get payload :root))
                             (qwen-companion-test-sent 'daemon-connect))))
      (qwen-companion-daemon-stop)
      ;; The mode was turned off too.
      (setq qwen-companion-backend--state 'off)
      (qwen-companion-chat--update)
      (should (qwen-companion-test-header-p "M-x qwen-companion-mode, then M-x qwen-companion-chat here")))))

(ert-deftest qwen-companion-chat-test-killed-leaves-the-session ()
  (qwen-companion-chat-test-with
    (insert "unsent")
    (qwen-companion-test-answering nil
      (should-not (kill-buffer)))
    (qwen-companion-chat-test-type "")
    (should (kill-buffer))
    (should (equal '((:session "s" :end nil)) (qwen-companion-test-sent 'daemon-close)))))

;;; Its buffer

(ert-deftest qwen-companion-chat-test-named-after-its-session ()
  (qwen-companion-chat-test-with
    (cl-flet ((titled (title)
                (qwen-companion-chat-test-session :state 'idle :title title)
                (buffer-name)))
      (should (equal "*qwen chat*" (titled nil)))
      (should (equal "*qwen chat: Fix the parser (project)*" (titled "Fix the parser")))
      ;; One that has its name already, and a name that is long and means harm.
      (qwen-companion-chat t)
      (qwen-companion-chat-test-reply 'daemon-open :session "n")
      (qwen-companion-chat-test-tell 'daemon-session :session "n" :state 'idle
                                     :title "Fix the parser")
      (should (equal "*qwen chat: Fix the parser (project)*<2>" (buffer-name)))
      (qwen-companion-chat-test-tell 'daemon-session :session "n" :state 'busy
                                     :title "Fix the parser")
      (should (equal "*qwen chat: Fix the parser (project)*<2>" (buffer-name)))
      (set-buffer (qwen-companion-chat-buffer "s"))
      (should (equal "*qwen chat: \\u202Eevil\\n%sxxxxxxxxxxxxxxxxx… (project)*"
                     (titled (concat "\u202eevil\n%s" (make-string 100 ?x)))))
      ;; The mode line has room for more, and takes no sign for an instruction.
      (let ((shown (car (qwen-companion-chat--identification))))
        (should (string-prefix-p "*qwen chat: \\u202Eevil" shown))
        (should (<= (string-width shown) 24)))
      (should (string-search "%%s" (with-temp-buffer
                                     (rename-buffer "a%s")
                                     (car (qwen-companion-chat--identification)))))
      ;; The user's word is the last one.
      (rename-buffer "mine")
      (should (equal "mine" (titled "Another"))))))

(ert-deftest qwen-companion-chat-test-exit-with-an-unsent-prompt-asks ()
  "The hook has a function of ours only while there is a chat."
  (qwen-companion-chat-test-with
    (qwen-companion-chat t)
    (should (run-hook-with-args-until-failure 'kill-emacs-query-functions))
    (insert "unsent")
    (let (asked)
      (qwen-companion-test-answering (lambda (text) (push text asked) nil)
        (should-not (run-hook-with-args-until-failure 'kill-emacs-query-functions)))
      (should (equal '("The prompt in *qwen chat*<2> has not been sent; exit anyway? ") asked)))
    (qwen-companion-chat-test-type "")
    (kill-buffer)
    (should (memq #'qwen-companion-chat--exit-p kill-emacs-query-functions))
    (kill-buffer (qwen-companion-chat-buffer "s"))
    (should-not (memq #'qwen-companion-chat--exit-p kill-emacs-query-functions))))

(ert-deftest qwen-companion-chat-test-an-unsent-prompt-is-auto-saved ()
  "It is in a file for as long as it is not sent and its chat is not killed."
  (qwen-companion-chat-test-with
    (cl-flet ((saved ()
                (do-auto-save t)
                (mapcar #'qwen-companion-drafts-text
                        (and (file-directory-p qwen-companion-drafts-directory)
                             (directory-files qwen-companion-drafts-directory t "\\`[^.]")))))
      (should-not (saved))
      (qwen-companion-chat-test-type "half a prompt")
      (should (equal '("half a prompt") (saved)))
      (qwen-companion-chat-test-type "")
      (should-not (saved))
      (qwen-companion-chat-test-type "another")
      (should (equal '("another") (saved)))
      (qwen-companion-test-answering t
        (kill-buffer (qwen-companion-chat-buffer "s")))
      (should-not (saved))
      (should-not (memq #'qwen-companion-chat--keep-drafts auto-save-hook)))))

(ert-deftest qwen-companion-chat-test-the-last-chat-leaves-nothing ()
  "While a session is being opened, its reply is still awaited."
  (qwen-companion-chat-test-with
    (qwen-companion-chat t)
    (kill-buffer)
    (kill-buffer (qwen-companion-chat-buffer "s"))
    (should qwen-companion-daemon-functions)
    (qwen-companion-chat-test-reply 'daemon-open :session "nobodys")
    (should (equal '(:session "nobodys" :end nil) (car (last (qwen-companion-test-sent 'daemon-close)))))
    (should-not qwen-companion-daemon-functions)
    (should-not qwen-companion-daemon-disconnected-hook)
    (should-not qwen-companion-backend-disconnected-hook)))

;;; Large texts and speed

(ert-deftest qwen-companion-chat-test-a-prompt-of-a-megabyte ()
  "It goes by file, and comes back as a message and as history."
  (qwen-companion-chat-test-with
    (let ((text (concat (make-string 500000 ?a) "\n" (make-string 500000 ?b))))
      (insert text)
      (qwen-companion-chat-send)
      (should (equal "" (qwen-companion-chat-test-prompt)))
      (let ((part (car (plist-get (car (qwen-companion-test-sent 'daemon-prompt)) :parts))))
        (should (plist-get part :text-file))
        (should (equal text (qwen-companion-spool-text part))))
      (qwen-companion-chat-test-turn
       (list :kind 'text :turn "t1" :voice 'user :by 'me
             :text-file (qwen-companion-spool-write text 'utf-8-unix)))
      (should (string-suffix-p (concat "You\n" text "\n") (qwen-companion-chat-test-conversation)))
      (goto-char (point-min))
      (should (search-forward "aaa\n"))
      (should (invisible-p (- (point) 2)))
      (goto-char (point-max))
      (qwen-companion-chat-previous-prompt)
      (should (equal text (qwen-companion-chat-test-prompt))))))

(ert-deftest qwen-companion-chat-test-nothing-runs-for-each-key-and-change ()
  "Only jit-lock, for the colours, runs there."
  (qwen-companion-chat-test-with
    (qwen-companion-chat-test-say "So.")
    (dolist (hook '(pre-command-hook post-command-hook before-change-functions
                    after-change-functions))
      (should-not (remq 'jit-lock-after-change
                        (remq t (and (local-variable-p hook) (symbol-value hook))))))))

(provide 'qwen-companion-chat-test)
;;; qwen-companion-chat-test.el ends here
