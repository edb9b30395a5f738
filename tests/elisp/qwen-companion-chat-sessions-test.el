;;; qwen-companion-chat-sessions-test.el --- Tests of the list of chats  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The list, the choice by title, several chats, and what is dead.

;;; Code:

(require 'qwen-companion-chat-test-helper)
(require 'qwen-companion-chat-sessions)

(defun qwen-companion-chat-sessions-test--told-p ()
  "Say whether the list of the sessions is still told of them."
  (memq #'qwen-companion-chat-sessions--on-report qwen-companion-daemon-functions))

(defmacro qwen-companion-chat-sessions-test-with (&rest body)
  "Run BODY in the list of the sessions, in an Emacs with the chat \"s\"."
  (declare (indent 0) (debug t))
  `(qwen-companion-chat-test-with
     (qwen-companion-chats)
     (unwind-protect
         (progn ,@body)
       (when-let* ((buffer (get-buffer "*qwen-companion chats*")))
         (kill-buffer buffer)))
     (should-not (qwen-companion-chat-sessions-test--told-p))
     (should-not qwen-companion-chat-sessions--listed)))

(defun qwen-companion-chat-sessions-test--tell (&rest sessions)
  "Let the Python process list SESSIONS."
  (qwen-companion-chat-test-tell 'daemon-sessions :sessions sessions))

(defun qwen-companion-chat-sessions-test--lines ()
  "Return the lines of the list, each as a list of its columns."
  (with-current-buffer "*qwen-companion chats*"
    (save-excursion
      (qwen-companion-test-first-row)
      (cl-loop until (eobp)
               collect (or (append (tabulated-list-get-entry) nil)
                           (list (string-trim (thing-at-point 'line t))))
               do (forward-line)))))

(defun qwen-companion-chat-sessions-test--go-to (text)
  "Move point in the list to the line with TEXT."
  (pop-to-buffer "*qwen-companion chats*")
  (qwen-companion-test-go-to text)
  (beginning-of-line))

(ert-deftest qwen-companion-chat-sessions-test-lists-all ()
  "Title, time, clients and state; a star for those with a chat here."
  (qwen-companion-chat-sessions-test-with
    (let* ((time (encode-time '(0 30 9 21 11 2026 nil nil nil)))
           (ms (* 1000 (truncate (float-time time)))))
      (qwen-companion-chat-sessions-test--tell
       (list :id "s" :title "Here" :updated ms :clients 2 :open t)
       '(:id "x" :title "Else\u202ewhere" :clients 0 :busy t)
       '(:id "y" :title nil :clients 0) '(:id "z" :title "Theirs" :clients 1))
      (should (equal '(("*" "Here" "2026-11-21 09:30" "2" "idle")
                       ("" "Else\\u202Ewhere" "" "0" "busy")
                       ("" "(no title)" "" "0" "ended")
                       ("" "Theirs" "" "1" "idle"))
                     (qwen-companion-chat-sessions-test--lines)))
      ;; The keys that work there.
      (pcase-dolist (`(,row . ,keys) '(("Here" . "RET open  \\+ new  k leave  D end")
                                       ("Theirs" . "RET open  \\+ new  D end")
                                       ("(no title)" . "RET open  \\+ new  g refresh")))
        (qwen-companion-chat-sessions-test--go-to row)
        (should (qwen-companion-test-header-p (concat "\\` 4 chats  " keys)))))))

(ert-deftest qwen-companion-chat-sessions-test-follows-its-chats ()
  "The state of an open chat is newer than the list; point stays at its session."
  (qwen-companion-chat-sessions-test-with
    (qwen-companion-chat-sessions-test--tell
     '(:id "x" :title "Other" :clients 1) '(:id "s" :title "Here" :clients 1))
    (qwen-companion-chat-sessions-test--go-to "Here")
    (qwen-companion-chat-test-session :state 'waiting)
    (should (equal '("idle" "waits for an answer")
                   (mapcar (lambda (line) (nth 4 line))
                           (qwen-companion-chat-sessions-test--lines))))
    (should (equal "s" (tabulated-list-get-id)))
    (qwen-companion-chat-sessions-test--tell '(:id "s" :title "Here" :clients 1)
                                             '(:id "x" :title "Other" :clients 1))
    (should (equal "s" (tabulated-list-get-id)))))

(ert-deftest qwen-companion-chat-sessions-test-asks-when-a-session-changes ()
  "After any change of a session, the list asks again for times and clients."
  (qwen-companion-chat-sessions-test-with
    (cl-flet ((asked () (length (qwen-companion-test-sent 'daemon-list))))
      (qwen-companion-chat-sessions-test--tell '(:id "s" :title "Here" :clients 1))
      (qwen-companion-chat-test-session :state 'busy)
      (let ((before (asked)))
        (qwen-companion-chat-test-session :state 'busy :clients 2)
        (should (= before (asked)))
        (should (equal "2" (nth 3 (car (qwen-companion-chat-sessions-test--lines)))))
        (qwen-companion-chat-test-session :state 'idle :clients 2)
        (should (= (1+ before) (asked)))))))

(ert-deftest qwen-companion-chat-sessions-test-without-any-chat ()
  "The list works where no chat was ever opened, and leaves nothing."
  (qwen-companion-chat-sessions-test-with
    (kill-buffer (qwen-companion-chat-buffer "s"))
    (qwen-companion-chat-sessions-test--tell '(:id "x" :title "Other" :clients 1)
                                             '(:id "y" :title "Old" :clients 0))
    (qwen-companion-chat-sessions-test--go-to "Old")
    (qwen-companion-test-answering (lambda (_) (error "Nothing to ask"))
      (should-error (call-interactively (key-binding "D")) :type 'user-error))
    (qwen-companion-chat-sessions-test--go-to "Other")
    (qwen-companion-test-answering t
      (call-interactively (key-binding "D")))
    (qwen-companion-test-said "Not yours"
      (qwen-companion-chat-test-reply 'daemon-close :error "Not yours" :problem 'refused))
    (should-not (memq #'qwen-companion-chat-state--report qwen-companion-daemon-functions))))

(ert-deftest qwen-companion-chat-sessions-test-dead-one-is-loaded-again ()
  "It stays in the list, also where the daemon has forgotten it."
  (qwen-companion-chat-sessions-test-with
    (qwen-companion-chat-test-session :state 'dead :title "Gone")
    (qwen-companion-chat-sessions-test--tell)
    (should (equal '("*" "Gone" "" "" "dead")
                   (car (qwen-companion-chat-sessions-test--lines))))
    (qwen-companion-chat-sessions-test--go-to "Gone")
    (call-interactively (key-binding (kbd "RET")))
    (should (eq (window-buffer) (qwen-companion-chat-buffer "s")))
    (should (equal "s" (plist-get (car (last (qwen-companion-test-sent 'daemon-load))) :session)))))

(ert-deftest qwen-companion-chat-sessions-test-attaches-once ()
  "A session gets one chat, and its reports go to that."
  (qwen-companion-chat-sessions-test-with
    (qwen-companion-chat-sessions-test--tell '(:id "x" :title "Other" :clients 1))
    (dotimes (_ 2)
      (qwen-companion-chat-sessions-test--go-to "Other")
      (call-interactively (key-binding (kbd "RET"))))
    (should (eq (window-buffer) (qwen-companion-chat-buffer "x")))
    (should (= 2 (length (qwen-companion-chat-buffers))))
    (should (= 1 (cl-count "x" (qwen-companion-test-sent 'daemon-load) :test #'equal
                           :key (lambda (payload) (plist-get payload :session)))))
    (qwen-companion-chat-test-tell
     'daemon-turn :session "x"
     :changes (list (qwen-companion-chat-test-text 'user "from elsewhere" :by 'other)))
    (with-current-buffer (qwen-companion-chat-buffer "x")
      (should (string-match-p "Somebody else\nfrom elsewhere"
                              (qwen-companion-chat-test-conversation))))
    (with-current-buffer (qwen-companion-chat-buffer "s")
      (should-not (string-match-p "elsewhere" (qwen-companion-chat-test-conversation))))))

(ert-deftest qwen-companion-chat-sessions-test-new-one ()
  (qwen-companion-chat-sessions-test-with
    (call-interactively (key-binding "+"))
    (should (= 2 (length (qwen-companion-test-sent 'daemon-open))))
    (qwen-companion-chat-test-reply 'daemon-open :session "n")
    (should (eq (window-buffer) (qwen-companion-chat-buffer "n")))))

(ert-deftest qwen-companion-chat-sessions-test-leaving-and-ending ()
  "Leaving is for a session with a chat; ending is for all, and asks."
  (qwen-companion-chat-sessions-test-with
    (qwen-companion-chat-sessions-test--tell '(:id "s" :title "Here" :clients 1)
                                             '(:id "x" :title "Other" :clients 1))
    (qwen-companion-chat-sessions-test--go-to "Other")
    (should-error (call-interactively (key-binding "k")) :type 'user-error)
    (qwen-companion-test-answering nil
      (call-interactively (key-binding "D")))
    (should-not (qwen-companion-test-sent 'daemon-close))
    (qwen-companion-test-answering t
      (call-interactively (key-binding "D")))
    (qwen-companion-chat-sessions-test--go-to "Here")
    (call-interactively (key-binding "k"))
    (should (equal '(("x" t) ("s" nil))
                   (mapcar (lambda (payload) (list (plist-get payload :session)
                                                   (plist-get payload :end)))
                           (qwen-companion-test-sent 'daemon-close))))
    (let ((asked (length (qwen-companion-test-sent 'daemon-list))))
      (qwen-companion-chat-test-reply 'daemon-close :session "s")
      (should (= (1+ asked) (length (qwen-companion-test-sent 'daemon-list)))))
    (qwen-companion-chat-sessions-test--go-to "Other")
    (goto-char (point-max))
    (should-error (call-interactively (key-binding (kbd "RET"))) :type 'user-error)))

(ert-deftest qwen-companion-chat-sessions-test-error-is-said ()
  (qwen-companion-chat-sessions-test-with
    (qwen-companion-chat-sessions-test--go-to "no title")
    (call-interactively (key-binding "k"))
    (qwen-companion-test-said "No such session"
      (qwen-companion-chat-test-reply 'daemon-close :error "No such session" :problem 'gone))))

(ert-deftest qwen-companion-chat-sessions-test-without-a-daemon ()
  "It says so, asks nothing, and asks when the daemon is there."
  (qwen-companion-chat-sessions-test-with
    (kill-buffer (qwen-companion-chat-buffer "s"))
    (qwen-companion-chat-test-daemon :state 'unreachable :text "down")
    (let ((asked (length (qwen-companion-test-sent 'daemon-list))))
      (qwen-companion-chat-sessions-test--tell)
      (revert-buffer)
      (should (equal "Not connected to a daemon (unreachable)"
                     (caar (qwen-companion-chat-sessions-test--lines))))
      (should-error (call-interactively (key-binding "k")) :type 'user-error)
      (should (= asked (length (qwen-companion-test-sent 'daemon-list))))
      (qwen-companion-chat-test-daemon :state 'connected :host "h:1")
      (should (= (1+ asked) (length (qwen-companion-test-sent 'daemon-list))))
      (should (equal "No session yet" (caar (qwen-companion-chat-sessions-test--lines)))))))

(ert-deftest qwen-companion-chat-sessions-test-chosen-by-title ()
  "Sessions that are listed late can be chosen, also those with equal titles."
  (qwen-companion-chat-test-with
    (qwen-companion-test-choosing
        (lambda (_prompt table &rest _)
          (should (= 1 (length (qwen-companion-test-sent 'daemon-list))))
          (qwen-companion-chat-sessions-test--tell
           '(:id "x" :title "Same" :clients 3) '(:id "y" :title "Same" :busy t))
          (let ((offered (cdr (qwen-companion-test-candidates table))))
            (should (equal '("Same" "Same <2>" "(no title)") (mapcar #'car offered)))
            (should (string-suffix-p "  idle, 3 clients" (cdr (nth 0 offered))))
            (should (string-suffix-p "  busy" (cdr (nth 1 offered)))))
          "Same <2>")
      (call-interactively #'qwen-companion-chat-switch))
    (should (eq (window-buffer) (qwen-companion-chat-buffer "y")))
    (should-not (qwen-companion-chat-sessions-test--told-p))))

(ert-deftest qwen-companion-chat-sessions-test-chosen-without-a-word ()
  "The chat before this one is the default, whatever is listed meanwhile."
  (qwen-companion-chat-test-with
    (qwen-companion-chat t)
    (qwen-companion-chat-test-reply 'daemon-open :session "n")
    (qwen-companion-test-choosing
        (lambda (prompt table &rest arguments)
          (should (equal "Chat (default (no title)): " prompt))
          (qwen-companion-chat-sessions-test--tell
           '(:id "x" :title "" :clients 1) '(:id "n" :title "" :clients 1)
           '(:id "s" :title "" :clients 1))
          (should (= 3 (length (delete-dups (all-completions "" table)))))
          (nth 4 arguments))
      (dolist (id '("s" "n"))
        (call-interactively #'qwen-companion-chat-switch)
        (should (eq (window-buffer) (qwen-companion-chat-buffer id)))))))

(ert-deftest qwen-companion-chat-sessions-test-quitting-the-choice-leaves-nothing ()
  (qwen-companion-chat-test-with
    (qwen-companion-test-choosing (lambda (&rest _) (signal 'quit nil))
      (should (eq 'quit (condition-case nil
                            (call-interactively #'qwen-companion-chat-switch)
                          (quit 'quit)))))
    (should-not (qwen-companion-chat-sessions-test--told-p))))

(provide 'qwen-companion-chat-sessions-test)
;;; qwen-companion-chat-sessions-test.el ends here
