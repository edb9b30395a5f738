;;; qwen-companion-chat-recorded-test.el --- A chat that is told what a real daemon said  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Turns and loads that were recorded from the real daemon, as the Python
;; process tells them: see recorded-reports.eld, which `make reports' makes.
;; After each single report everything that must always hold is checked;
;; each test then looks at the text and what is on it.

;;; Code:

(require 'qwen-companion-chat-test-helper)

(defconst qwen-companion-chat-recorded-test--reports
  (with-temp-buffer
    (insert-file-contents
     (expand-file-name "recorded-reports.eld"
                       (file-name-directory (or load-file-name buffer-file-name))))
    (read (current-buffer)))
  "Alist of recorded turns and loads, and the messages for each.")

;;; What always holds

(defun qwen-companion-chat-recorded-test--runs ()
  "Return where runs of the same properties begin and end: ((START . END)...)."
  (cl-loop with place = (point-min)
           while (< place qwen-companion-chat-blocks-conversation-end)
           collect (cons place
                         (setq place (next-property-change
                                      place nil qwen-companion-chat-blocks-conversation-end)))))

(defvar qwen-companion-chat-recorded-test--said nil
  "List of (VOICE . TEXT), all text of the conversation so far, newest first.")

(defun qwen-companion-chat-recorded-test--check-text ()
  "Check that no text of the conversation is lost, and none is doubled."
  (let ((conversation (qwen-companion-chat-test-conversation))
        (runs (qwen-companion-chat-recorded-test--runs)))
    (dolist (voice '(user thought answer))
      (let ((said (cl-loop for (who . text) in qwen-companion-chat-recorded-test--said
                           when (eq who voice) collect text)))
        (should-not (cl-find-if-not (lambda (text) (string-search text conversation)) said))
        (should (= (length (apply #'concat said))
                   (cl-loop for (start . end) in runs
                            when (eq voice (get-text-property start 'qwen-companion-chat-voice))
                            sum (- end start))))))))

(defun qwen-companion-chat-recorded-test--check-properties ()
  "Check that the conversation is read-only, has keys and belongs to blocks."
  (should-not
   (cl-find-if-not
    (pcase-lambda (`(,start . ,end))
      (let ((block (qwen-companion-chat-blocks-at start)))
        (and (get-text-property start 'read-only)
             (keymapp (get-text-property start 'keymap))
             (<= (qwen-companion-chat-block-start block) start)
             (<= end (qwen-companion-chat-block-end block)))))
    (qwen-companion-chat-recorded-test--runs))))

(defun qwen-companion-chat-recorded-test--check-prompt ()
  "Check that the prompt and point are as `--with' has left them."
  (should (equal "half a prompt" (qwen-companion-chat-test-prompt)))
  (should (looking-at "mpt\\'"))
  (should-not (text-property-not-all (point) (point-max) 'read-only nil)))

;;; Telling

(defmacro qwen-companion-chat-recorded-test-with (&rest body)
  "Run BODY in a chat with half a prompt."
  (declare (indent 0) (debug t))
  `(let ((qwen-companion-chat-recorded-test--said nil))
     (qwen-companion-chat-test-with
       (insert "half a prompt")
       (backward-char 3)
       ,@body)))

(defun qwen-companion-chat-recorded-test--note (method payload)
  "Record the text that METHOD with PAYLOAD adds to the conversation."
  (when (eq method 'daemon-reset)
    (setq qwen-companion-chat-recorded-test--said nil))
  (dolist (change (plist-get payload :changes))
    (when (eq 'text (plist-get change :kind))
      (push (cons (plist-get change :voice) (plist-get change :text))
            qwen-companion-chat-recorded-test--said))))

(defun qwen-companion-chat-recorded-test--tell (method payload)
  "Let the Python process send METHOD with PAYLOAD; check the invariants."
  (cl-letf (((symbol-function 'qwen-companion-backend-notice)
             ;; Nothing of this fails.
             (lambda (text) (ert-fail text))))
    (apply #'qwen-companion-chat-test-tell method (plist-put (copy-sequence payload) :session "s")))
  (qwen-companion-chat-recorded-test--note method payload)
  (qwen-companion-chat-recorded-test--check-text)
  (qwen-companion-chat-recorded-test--check-properties)
  (qwen-companion-chat-recorded-test--check-prompt))

(defun qwen-companion-chat-recorded-test--play (name &optional until)
  "Tell all reports of the recorded NAME, or up to the first that is UNTIL.
UNTIL gets the method and the payload.  The texts that are told then are
told as well."
  (cl-loop for ((method payload) . rest)
           on (cdr (assoc name qwen-companion-chat-recorded-test--reports))
           with done = nil
           do (qwen-companion-chat-recorded-test--tell method payload)
           do (setq done (or done (and until (funcall until method payload))))
           until (and done (not (memq (caar rest) '(daemon-text daemon-session)))))
  (qwen-companion-test-wait-for
   (not (string-search "being fetched" (qwen-companion-chat-test-conversation)))))

(defun qwen-companion-chat-recorded-test--asks (method payload)
  "Return non-nil when METHOD with PAYLOAD asks the user."
  (and (eq method 'daemon-permission) (eq 'open (plist-get payload :state))))

;;; What is to be seen

(defun qwen-companion-chat-recorded-test--line ()
  "Return the line at point as (TEXT WHAT...), see `--lines'."
  ;; The mark of a heading is not to be seen.
  (skip-chars-forward "\f")
  (let ((end (line-end-position))
        (face (car (ensure-list (get-text-property (point) 'face))))
        (button (text-property-not-all (point) (line-end-position) 'keymap
                                       (get-text-property (point) 'keymap))))
    (append
     (list (buffer-substring-no-properties (point) end))
     (delq (and face (intern (string-remove-prefix "qwen-companion-chat-" (symbol-name face))))
           (ensure-list (get-text-property (point) 'qwen-companion-chat-voice)))
     (and face (list (intern (string-remove-prefix "qwen-companion-chat-" (symbol-name face)))))
     (pcase (and (invisible-p (point)) (get-char-property (point) 'invisible))
       ('qwen-companion-chat-markup '(hidden))
       ((or 'qwen-companion-chat-fold-rest 'qwen-companion-chat-fold) '(folded)))
     (and (get-text-property (point) 'line-prefix) '(indented))
     (and (get-text-property (point) 'qwen-companion-chat-option) '(option))
     (and (get-text-property (point) 'qwen-companion-chat-choice) '(choice))
     (and button '(button)))))

(defun qwen-companion-chat-recorded-test--lines ()
  "Return the lines of the conversation, each (TEXT WHAT...).
WHAT are whose words they are, the face they begin with, whether they are
folded, hidden, indented, an option or a choice, and whether a button is
in them."
  (qwen-companion-chat-test-show)
  (save-excursion
    (goto-char (point-min))
    (cl-loop while (< (point) qwen-companion-chat-blocks-conversation-end)
             collect (qwen-companion-chat-recorded-test--line)
             do (forward-line))))

(defun qwen-companion-chat-recorded-test--from (text)
  "Return the lines from the first that begins with TEXT on, see `--lines'."
  (cl-member-if (lambda (line) (string-prefix-p text (car line)))
                (qwen-companion-chat-recorded-test--lines)))

(defun qwen-companion-chat-recorded-test--press (key text)
  "Press KEY at the beginning of TEXT in the conversation."
  (qwen-companion-test-go-to text)
  (goto-char (match-beginning 0))
  (call-interactively (key-binding (kbd key))))

(defun qwen-companion-chat-recorded-test--shows (text lines)
  "Check that LINES are those from the first one that begins with TEXT."
  (declare (indent 1))
  (should (equal lines (qwen-companion-chat-recorded-test--from text))))

(defmacro qwen-companion-chat-recorded-test-played (name &rest body)
  "Run BODY in a chat that was told all reports of the recorded NAME."
  (declare (indent 1) (debug t))
  `(qwen-companion-chat-recorded-test-with
     (qwen-companion-chat-recorded-test--play ,name)
     ,@body))

(defmacro qwen-companion-chat-recorded-test-asked (name &rest body)
  "Run BODY in a chat that was told the recorded NAME up to its question."
  (declare (indent 1) (debug t))
  `(qwen-companion-chat-recorded-test-with
     (qwen-companion-chat-recorded-test--play ,name #'qwen-companion-chat-recorded-test--asks)
     ,@body))

(defconst qwen-companion-chat-recorded-test--once
  '(("  C-c C-v    show all of it")
    ("  C-c C-a n  Reject" option)
    ("  C-c C-a y  Allow" option)
    ("  C-c C-a !  Allow All Edits  holds for the rest of this session" option)
    ("  C-c C-a d  dismiss without an answer"))
  "The options that a change of a file has.")

;;; Turns

(ert-deftest qwen-companion-chat-recorded-test-start ()
  (qwen-companion-chat-recorded-test-played "start"
    (should-not (qwen-companion-chat-recorded-test--lines))
    (should (equal '("status" "advisor" "tasks")
                   (mapcar (lambda (command) (plist-get command :name))
                           qwen-companion-chat-send--commands)))
    (should (string-match-p "\\` idle .* default\\'" (qwen-companion-chat-test-mode-line)))))

(ert-deftest qwen-companion-chat-recorded-test-answer ()
  (qwen-companion-chat-recorded-test-played "answer"
    (should (equal '(("")
                     ("You" heading)
                     ("hello" user)
                     ("")
                     ("Hello there, this is an answer." answer))
                   (qwen-companion-chat-recorded-test--lines)))
    (should (string-suffix-p "last answer 1 in, 1 out" (qwen-companion-test-header)))))

(ert-deftest qwen-companion-chat-recorded-test-thought-and-markdown ()
  (qwen-companion-chat-recorded-test-played "think"
    (qwen-companion-chat-recorded-test--shows "please think"
      '(("please think" user)
        ("Thought" thought)
        ("First this," thought folded)
        ("then that." thought folded)
        ("")
        ("Two *things*:" answer)
        ("" answer)
        ("- one" answer bold)
        ("- `two`" answer bold)
        ("" answer)
        ("```python" answer markup hidden)
        ("print(1)" answer font-lock-builtin-face)
        ("```" answer markup hidden)
        ("")))
    (qwen-companion-chat-recorded-test--press "TAB" "Thought")
    (should (equal '("First this," thought)
                   (cadr (qwen-companion-chat-recorded-test--from "Thought"))))))

(ert-deftest qwen-companion-chat-recorded-test-tool-that-reads ()
  (qwen-companion-chat-recorded-test-played "read"
    (should (equal '(("done      ReadFile: greeting.py  (0.0 s)" success)
                     ("Tool: read_file (read)" shadow folded indented)
                     ("Input:" shadow folded indented)
                     ("file_path: /home/user/project/greeting.py" code folded indented)
                     ("File: /home/user/project/greeting.py" shadow folded indented)
                     ("Output:" shadow folded indented)
                     ("# A small program to talk about." code folded indented))
                   (seq-take (qwen-companion-chat-recorded-test--from "done") 7)))
    (qwen-companion-chat-recorded-test--shows "    print"
      '(("    print(greet(\"world\"))" code folded indented)
        ("")
        ("I have read it." answer)))))

(ert-deftest qwen-companion-chat-recorded-test-file-written-whole ()
  "The daemon's message does not tell whether the file was new or empty."
  (qwen-companion-chat-recorded-test-asked "write"
    (qwen-companion-chat-recorded-test--shows "pending"
      `(("pending   Writing to new.txt" shadow)
        ("Tool: write_file (edit)" shadow folded indented)
        ("Input:" shadow folded indented)
        ("file_path: /home/user/project/new.txt" code folded indented)
        ("content:" code folded indented)
        ("one" code folded indented)
        ("two" code folded indented)
        ("Change: /home/user/project/new.txt  8 characters; the file is new or was empty"
         shadow folded indented button)
        ("File: /home/user/project/new.txt" shadow folded indented)
        ("Permission: Writing to new.txt" permission)
        ("    /home/user/project/new.txt (new file, or an empty one)")
        ("@@ -0,0 +1,2 @@" diff-hunk-header indented)
        ("+one" diff-added indented)
        ("+two" diff-added indented)
        ,@qwen-companion-chat-recorded-test--once))
    (should (string-prefix-p " waiting " (qwen-companion-chat-test-mode-line)))
    (should (equal " Asks:1" (qwen-companion-chat-permissions-lighter))))
  (qwen-companion-chat-recorded-test-played "write"
    (should (equal '("done      Writing to new.txt  (0.0 s)" success)
                   (car (qwen-companion-chat-recorded-test--from "done"))))
    (qwen-companion-chat-recorded-test--shows "Writing to"
      '(("Writing to new.txt: you answered \"Allow\"" shadow)
        ("    /home/user/project/new.txt  +2 -0")
        ("@@ -0,0 +1,2 @@" diff-hunk-header indented)
        ("+one" diff-added indented)
        ("+two" diff-added indented)
        ("")
        ("That is done." answer)))
    (should (equal "" (qwen-companion-chat-permissions-lighter)))))

(ert-deftest qwen-companion-chat-recorded-test-edit ()
  "The difference is below the question, and RET on an option answers."
  (qwen-companion-chat-recorded-test-asked "edit"
    (qwen-companion-chat-recorded-test--shows "Permission"
      `(("Permission: greeting.py" permission)
        ("    /home/user/project/greeting.py")
        ("@@ -2,7 +2,7 @@" diff-hunk-header indented)
        (" " diff-context indented)
        (" " diff-context indented)
        (" def greet(name: str) -> str:" diff-context indented)
        ("-    return \"hello \" + name" diff-removed indented)
        ("+    return \"good day \" + name" diff-added indented)
        (" " diff-context indented)
        (" " diff-context indented)
        (" def main() -> None:" diff-context indented)
        ,@qwen-companion-chat-recorded-test--once))
    (qwen-companion-chat-recorded-test--press "RET" "  C-c C-a y  Allow")
    (let ((answer (car (qwen-companion-test-sent 'daemon-answer)))
          (asked (qwen-companion-chat-permissions--item-report
                  (car qwen-companion-chat-permissions--items))))
      (should (equal (plist-get (cadr (plist-get asked :options)) :id) (plist-get answer :option)))
      (should (equal (plist-get asked :permission) (plist-get answer :permission)))))
  (qwen-companion-chat-recorded-test-played "edit"
    (should (member '("Change: /home/user/project/greeting.py  139 to 142 characters"
                      shadow folded indented button)
                    (qwen-companion-chat-recorded-test--lines)))
    (qwen-companion-chat-recorded-test--press "RET" "/home/user/project/greeting.py  139")
    (should (eq 'new (plist-get (car (last (qwen-companion-test-sent 'daemon-fetch))) :part)))))

(ert-deftest qwen-companion-chat-recorded-test-file-made-by-an-edit ()
  "For this tool the daemon's message says that the file is new."
  (qwen-companion-chat-recorded-test-asked "create"
    (qwen-companion-chat-recorded-test--shows "Permission"
      `(("Permission: Create fresh.txt" permission)
        ("    /home/user/project/fresh.txt (new file)")
        ("@@ -0,0 +1 @@" diff-hunk-header indented)
        ("+new" diff-added indented)
        ,@qwen-companion-chat-recorded-test--once)))
  (qwen-companion-chat-recorded-test-played "create"
    (should (member '("Change: /home/user/project/fresh.txt  a new file of 4 characters"
                      shadow folded indented button)
                    (qwen-companion-chat-recorded-test--lines)))))

(ert-deftest qwen-companion-chat-recorded-test-shell-command ()
  (qwen-companion-chat-recorded-test-asked "run"
    (qwen-companion-chat-recorded-test--shows "Permission"
      '(("Permission: touch x; echo done" permission)
        ("command: touch x; echo done" permission-input indented)
        ("is_background: false" permission-input indented)
        ("  C-c C-a n  Reject" option)
        ("  C-c C-a y  Allow" option)
        ("  C-c C-a W  Always Allow in project: touch *  writes a rule into .qwen/settings.json of the workspace"
         option)
        ("  C-c C-a U  Always Allow for user: touch *  writes a rule into ~/.qwen/settings.json"
         option)
        ("  C-c C-a d  dismiss without an answer"))))
  (qwen-companion-chat-recorded-test-played "run"
    (should (equal '(("done      touch x; echo done  (0.0 s)" success)
                     ("Tool: run_shell_command (execute)" shadow folded indented)
                     ("Output:" shadow folded indented)
                     ("Command: touch x; echo done" code folded indented)
                     ("Directory: (root)" code folded indented)
                     ("Output: done" code folded indented))
                   (seq-take (qwen-companion-chat-recorded-test--from "done") 6)))))

(ert-deftest qwen-companion-chat-recorded-test-questions ()
  (qwen-companion-chat-recorded-test-asked "ask"
    (qwen-companion-chat-recorded-test--shows "Asked"
      '(("Asked: Ask user 2 questions" permission)
        ("  Database: Which database?")
        ("    ( ) sqlite  one file" choice)
        ("    ( ) postgres  a server" choice)
        ("    ( ) an answer of your own" choice)
        ("  Colours: Which colours?  (one or more)")
        ("    [ ] red  warm" choice)
        ("    [ ] blue  cold" choice)
        ("    [ ] an answer of your own" choice)
        ("  C-c C-a n  Cancel" option)
        ("  C-c C-a y  Submit" option)
        ("  C-c C-a d  dismiss without an answer")))
    (dolist (choice '("( ) sqlite" "[ ] red" "[ ] blue" "  C-c C-a y"))
      (qwen-companion-chat-recorded-test--press "RET" choice))
    (should (equal '(("sqlite") ("red" "blue"))
                   (plist-get (car (qwen-companion-test-sent 'daemon-answer)) :answers))))
  (qwen-companion-chat-recorded-test-played "ask"
    (qwen-companion-chat-recorded-test--shows "**Database"
      '(("**Database**: sqlite" code folded indented)
        ("**Colours**: red, blue" code folded indented)
        ("Ask user 2 questions: you answered \"Submit\"" shadow)
        ("")
        ("That is done." answer)))))

(ert-deftest qwen-companion-chat-recorded-test-rejected ()
  (qwen-companion-chat-recorded-test-played "reject"
    (should (equal '("failed    Writing to other.txt  (0.0 s)  Tool \"write_file\" was canceled by the user." error)
                   (car (qwen-companion-chat-recorded-test--from "failed"))))
    (qwen-companion-chat-recorded-test--shows "Output"
      '(("Output:" shadow folded indented)
        ("Tool \"write_file\" was canceled by the user." code folded indented)
        ("Writing to other.txt: you answered \"Reject\"" shadow)))))

(ert-deftest qwen-companion-chat-recorded-test-cancelled-with-a-queue ()
  (qwen-companion-chat-recorded-test-with
    (let (queued)
      (qwen-companion-chat-recorded-test--play
       "cancel" (lambda (_method _payload)
                  (when (string-match "\\([0-9]+\\) queued" (qwen-companion-test-header))
                    (push (match-string 1 (qwen-companion-test-header)) queued))
                  nil))
      (should (equal '("1" "2" "1") (delete-consecutive-dups (nreverse queued))))
      (should-not (string-match-p "queued" (qwen-companion-test-header))))
    (qwen-companion-chat-recorded-test--shows "Writing to"
      '(("Writing to other.txt: closed without an answer" shadow)
        ("Cancelled" warning)
        ("Removed from the queue: not this" warning)
        ("")
        ("You" heading)
        ("then this" user)
        ("")
        ("The second prompt is answered." answer)))
    (should (string-prefix-p " idle" (qwen-companion-chat-test-mode-line)))))

(ert-deftest qwen-companion-chat-recorded-test-plan ()
  (qwen-companion-chat-recorded-test-played "plan"
    (qwen-companion-chat-recorded-test--shows "Plan"
      '(("Plan" bold)
        ("[x] Look" shadow)
        ("[-] Write" bold)
        ("[ ] Test" default)
        ("")
        ("That is the plan." answer)))))

(ert-deftest qwen-companion-chat-recorded-test-agent ()
  "An agent's text and tools are below it, indented."
  (qwen-companion-chat-recorded-test-played "agent"
    (should (equal '("done      Agent: Look around  (0.0 s)" success)
                   (car (qwen-companion-chat-recorded-test--from "done"))))
    (qwen-companion-chat-recorded-test--shows "I see."
      '(("I see." code folded indented)
        ("" indented)
        ("I look." answer indented)
        ("done      ReadFile: fresh.txt  (0.0 s)" success indented)
        ("Tool: read_file (read)" shadow folded indented)
        ("Input:" shadow folded indented)
        ("file_path: /home/user/project/fresh.txt" code folded indented)
        ("File: /home/user/project/fresh.txt" shadow folded indented)
        ("Output:" shadow folded indented)
        ("new" code folded indented)
        ("" indented)
        ("I see." answer indented)
        ("Look around: you answered \"Allow\"" shadow)
        ("")
        ("It has looked." answer)))))

(ert-deftest qwen-companion-chat-recorded-test-in-the-background ()
  "Messages of the agent after the end of the turn."
  (qwen-companion-chat-recorded-test-played "background"
    (qwen-companion-chat-recorded-test--shows "It runs."
      '(("It runs." answer)
        ("")
        ("Background shell \"sleep 2; echo rested\" completed." answer)
        ("")
        ("It has ended." answer)))
    (should (string-prefix-p " idle" (qwen-companion-chat-test-mode-line)))))

(ert-deftest qwen-companion-chat-recorded-test-told-in-between ()
  (qwen-companion-chat-recorded-test-played "inject"
    (qwen-companion-chat-recorded-test--shows "Sent"
      '(("Sent during the turn: also this") ("") ("I have heard." answer)))
    (should-not (string-match-p "queued" (qwen-companion-test-header)))))

(ert-deftest qwen-companion-chat-recorded-test-failed ()
  (qwen-companion-chat-recorded-test-played "fail"
    (qwen-companion-chat-recorded-test--shows "please"
      '(("please fail" user) ("Failed: 401 The model is not to be had." warning)
        ("The agent still has this prompt, and may carry it out with the next one; C-c C-r goes back to before it"
         warning)))
    (should (string-prefix-p " idle" (qwen-companion-chat-test-mode-line)))))

(ert-deftest qwen-companion-chat-recorded-test-agent-process-killed ()
  "The question is closed, tool and turn have failed, and how to go on is said."
  (qwen-companion-chat-recorded-test-played "killed"
    (should (equal '(("failed    touch y" error)
                     ("Tool: run_shell_command (execute)" shadow folded indented)
                     ("touch y: closed without an answer" shadow))
                   (seq-take (qwen-companion-chat-recorded-test--from "failed") 3)))
    (should (string-prefix-p "Failed: agent channel closed"
                             (caar (last (qwen-companion-chat-recorded-test--lines) 2))))
    (should (qwen-companion-test-header-p "Ended; .* loads the session again: The agent of the session has ended"))
    (should-error (qwen-companion-chat-send) :type 'user-error)))

(ert-deftest qwen-companion-chat-recorded-test-ends-of-sessions ()
  (pcase-dolist (`(,name ,state ,header)
                 '(("died" " disconnected" "Disconnected: The daemon has shut down")
                   ("closed" " closed" "Left; .* loads the session again: The session has been closed")))
    (qwen-companion-chat-recorded-test-played "answer"
      (qwen-companion-chat-recorded-test--play name)
      (should (string-prefix-p state (qwen-companion-chat-test-mode-line)))
      (should (string-match-p header (qwen-companion-test-header)))
      ;; What has been said stays.
      (qwen-companion-chat-recorded-test--shows "Hello"
        '(("Hello there, this is an answer." answer))))))

(ert-deftest qwen-companion-chat-recorded-test-settings ()
  (qwen-companion-chat-recorded-test-played "settings"
    (should (equal '(("The model was not changed: Model 'none' not found for authType 'openai'"
                      warning))
                   (qwen-companion-chat-recorded-test--lines)))
    (should (string-suffix-p " auto-edit" (qwen-companion-chat-test-mode-line)))))

;;; Loads

(ert-deftest qwen-companion-chat-recorded-test-load-while-it-is-asked ()
  "The conversation is there, and the question with its difference."
  (qwen-companion-chat-recorded-test-played "load_waiting"
    (should (equal '("please think" "please read" "please edit")
                   (mapcar #'car (funcall imenu-create-index-function))))
    (should (member '("+    return \"good day \" + name" diff-added indented)
                    (qwen-companion-chat-recorded-test--from "Permission")))
    (qwen-companion-chat-recorded-test--press "RET" "  C-c C-a y  Allow")
    (should (= 1 (length (qwen-companion-test-sent 'daemon-answer))))))

(defun qwen-companion-chat-recorded-test--told (&rest names)
  "Return the text of a chat that gets the recorded NAMES one after the other.
A list of (KIND LINE...), without what the daemon tells at that moment
only: the questions that were asked and how long it took; and without the
title of a tool, which a load tells as it was at another moment."
  (qwen-companion-chat-recorded-test-with
    (mapc #'qwen-companion-chat-recorded-test--play names)
    (qwen-companion-chat-test-show)
    (cl-loop
     for block in (qwen-companion-chat-blocks-list)
     for kind = (car (qwen-companion-chat-block-id block))
     unless (eq kind 'permission)
     collect
     (cons kind
           (save-excursion
             (goto-char (qwen-companion-chat-block-start block))
             (let ((lines (cl-loop
                           while (< (point) (qwen-companion-chat-block-end block))
                           collect (qwen-companion-chat-recorded-test--line)
                           do (forward-line))))
               (if (eq kind 'tool)
                   (cons (car (split-string (caar lines))) (cdr lines))
                 lines)))))))

(defun qwen-companion-chat-recorded-test--not-of-agents (told)
  "Return TOLD without the messages of agents and without ends of turns.
In a session that is read from the disk the daemon does not tell them."
  (cl-remove-if (lambda (block) (or (eq 'end (car block)) (memq 'indented (cadr (cdr block)))))
                told))

(defconst qwen-companion-chat-recorded-test--turns
  '("think" "read" "edit" "create" "plan" "agent" "background" "inject" "fail")
  "The turns of the session that was recorded in several loads.")

(ert-deftest qwen-companion-chat-recorded-test-live-and-loaded-are-the-same ()
  (should (equal (apply #'qwen-companion-chat-recorded-test--told
                        '("answer" "write" "ask" "run" "reject" "cancel"))
                 (qwen-companion-chat-recorded-test--told "load")))
  (should (equal (apply #'qwen-companion-chat-recorded-test--told
                        qwen-companion-chat-recorded-test--turns)
                 (qwen-companion-chat-recorded-test--told "load_live"))))

(ert-deftest qwen-companion-chat-recorded-test-live-and-from-the-disk-are-the-same ()
  (should (equal (qwen-companion-chat-recorded-test--not-of-agents
                  (apply #'qwen-companion-chat-recorded-test--told
                         qwen-companion-chat-recorded-test--turns))
                 (qwen-companion-chat-recorded-test--not-of-agents
                  (qwen-companion-chat-recorded-test--told "load_disk")))))

(ert-deftest qwen-companion-chat-recorded-test-loaded-twice-is-the-same ()
  (let ((once (qwen-companion-chat-recorded-test--told "load_live")))
    (should (equal once (qwen-companion-chat-recorded-test--told "load_live" "load_live")))
    ;; A load is all there is, whatever was there before.
    (should (equal once (qwen-companion-chat-recorded-test--told "run" "load_live")))))

(provide 'qwen-companion-chat-recorded-test)
;;; qwen-companion-chat-recorded-test.el ends here
