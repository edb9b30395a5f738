;;; qwen-companion-attention-test.el --- Tests of telling the user  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Which events there are, when the user is told of them, and how.

;;; Code:

(require 'qwen-companion-test-helper)

(defun qwen-companion-attention-test--session (activity &optional since question)
  "Return a session that does ACTIVITY since SINCE, in ms, and asks QUESTION."
  (list :id "1" :client "Qwen Code" :directory "/home/me/project"
        :state (list :activity activity :since since :question question)))

(defun qwen-companion-attention-test--events (&rest states)
  "Return (KIND TEXT) of the events while one session goes through STATES.
Each is a list of sessions."
  (let* (events
         (qwen-companion-attention-functions
          (list (lambda (event)
                  (push (list (qwen-companion-event-kind event) (qwen-companion-event-text event))
                        events)))))
    (cl-loop for (before after) on states while after
             do (qwen-companion-attention-sessions-changed before after))
    (nreverse events)))

(defmacro qwen-companion-attention-test--with-events (arrival &rest body)
  "Run BODY with a file, and reviews that arrive by ARRIVAL.
`events' are those of which the user was told, newest first."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-backend
     (qwen-companion-test-with-files '(("a.txt" "one\n"))
       (let* ((events nil)
              (qwen-companion-diff-arrival ,arrival)
              (qwen-companion-attention-functions
               (list (lambda (_event) (error "No bell")) (lambda (event) (push event events)))))
         (qwen-companion-attention-enable)
         (unwind-protect (progn ,@body)
           (qwen-companion-attention-disable))))))

(ert-deftest qwen-companion-attention-test-done-after-long-work ()
  (let ((short (list (list (qwen-companion-attention-test--session 'working 0))
                     (list (qwen-companion-attention-test--session 'idle 9000))))
        (long (list (list (qwen-companion-attention-test--session 'working 0))
                    (list (qwen-companion-attention-test--session 'idle 65000)))))
    (let ((qwen-companion-attention-seconds 10))
      (should-not (apply #'qwen-companion-attention-test--events short))
      (should (equal '((done "Qwen Code in project is done after 1 min"))
                     (apply #'qwen-companion-attention-test--events long))))
    (let ((qwen-companion-attention-seconds nil))
      (should-not (apply #'qwen-companion-attention-test--events long)))))

(ert-deftest qwen-companion-attention-test-asks-once-for-each-question ()
  (let ((asks (lambda (question)
                (list (qwen-companion-attention-test--session 'asking 0 question)))))
    (should (equal '((asks "Qwen Code in project asks: Run a\\nb?")
                     (asks "Qwen Code in project asks: Run c?"))
                   (qwen-companion-attention-test--events
                    (list (qwen-companion-attention-test--session 'working 0))
                    (funcall asks "Run a\nb?")
                    (funcall asks "Run a\nb?")
                    (funcall asks "Run c?"))))))

(ert-deftest qwen-companion-attention-test-a-turn-that-has-failed ()
  (let ((failed (append (list :state '(:activity failed :since 1 :failure "rate limit"))
                        (qwen-companion-attention-test--session 'working 0))))
    (should (equal '((failed "Qwen Code in project failed: rate limit"))
                   (qwen-companion-attention-test--events
                    (list (qwen-companion-attention-test--session 'working 0))
                    (list failed)
                    (list (append failed nil)))))))

(ert-deftest qwen-companion-attention-test-gone-in-the-middle ()
  "It reports only CLIs that were working when their process ended."
  (let ((working (qwen-companion-attention-test--session 'working 0))
        (idle (qwen-companion-attention-test--session 'idle 0)))
    ;; It may have lost its connection.
    (should-not (qwen-companion-attention-test--events
                 (list (append (list :pid (emacs-pid)) working)) '(nil) nil))
    (let* ((process (start-process "true" nil "true"))
           (ended (list :pid (process-id process))))
      (while (process-live-p process)
        (accept-process-output process))
      (should-not (qwen-companion-attention-test--events (list (append ended idle)) '((:id "2"))))
      (should (equal '((gone "Qwen Code in project has ended during a turn"))
                     (qwen-companion-attention-test--events
                      (list (append ended working)) '((:id "2"))))))))

(ert-deftest qwen-companion-attention-test-nothing-about-a-terminal-with-the-focus ()
  "A terminal that is selected in a frame with the focus needs no word."
  (let* ((focus t)
         (told 0)
         (qwen-companion-attention-functions (list (lambda (_event) (cl-incf told))))
         (before (list (qwen-companion-attention-test--session 'working 0)))
         (after (list (qwen-companion-attention-test--session 'asking 0 "?"))))
    (with-temp-buffer
      (cl-letf* ((terminal (current-buffer))
                 ((symbol-function 'qwen-companion-terminal-session-buffer)
                  (lambda (_session) terminal))
                 ((symbol-function 'frame-focus-state) (lambda (&rest _) focus)))
        (save-window-excursion
          (set-window-buffer (selected-window) terminal)
          (qwen-companion-attention-sessions-changed before after)
          (should (= 0 told))
          (setq focus nil)
          (qwen-companion-attention-sessions-changed before after)
          (should (= 1 told)))
        (setq focus t)
        (qwen-companion-attention-sessions-changed before after)
        (should (= 2 told))))))

(ert-deftest qwen-companion-attention-test-proposals-and-failures ()
  "They are told, by all functions, also if one fails; and only while enabled."
  (qwen-companion-attention-test--with-events 'command
    (qwen-companion-test-said "error in .qwen-companion-attention-functions.: No bell"
      (qwen-companion-test-propose "a.txt" "two\n"))
    (let ((event (pop events)))
      (should (eq 'proposal (qwen-companion-event-kind event)))
      (should (equal (expand-file-name "a.txt")
                     (qwen-companion-proposal-path (qwen-companion-event-proposal event)))))
    (qwen-companion-test-with-failure "no Python"
      (run-hook-with-args 'qwen-companion-state-functions 'error))
    (should (equal "Not running: no Python" (qwen-companion-event-text (pop events))))
    (qwen-companion-attention-disable)
    (qwen-companion-test-propose "a.txt" "three\n")
    (should-not events)))

(ert-deftest qwen-companion-attention-test-not-of-the-doctor ()
  "The proposal with which the doctor checks the way calls nobody and does not open."
  (qwen-companion-attention-test--with-events 'now
    (let (proposal)
      (qwen-companion-test-silent
        (setq proposal (qwen-companion-test-propose "new.txt" "two\n" :client "qwen-companion-doctor 1")))
      (should-not events)
      (should-not (qwen-companion-test-review-awaits-p))
      ;; It can be opened.
      (should (equal (list proposal) (qwen-companion-proposals))))))

(ert-deftest qwen-companion-attention-test-echo-area ()
  (let ((event (make-qwen-companion-event :kind 'asks :text "CLI asks: %s <b>&")))
    (should (equal "qwen-companion: CLI asks: %s <b>&"
                   (qwen-companion-test-messages (qwen-companion-attention-message event))))
    ;; Announced elsewhere.
    (qwen-companion-test-silent
      (qwen-companion-attention-message
       (make-qwen-companion-event :kind 'proposal :text "x")))))

(ert-deftest qwen-companion-attention-test-desktop ()
  "The notification has no markup and does not block; without D-Bus none is sent."
  (let ((event (make-qwen-companion-event :kind 'asks :text "a <b>&"))
        (process-environment (cons "DBUS_SESSION_BUS_ADDRESS=unix:" process-environment))
        sent)
    (require 'notifications)
    (cl-letf (((symbol-function 'dbus-call-method-asynchronously)
               (lambda (&rest arguments) (setq sent arguments))))
      (cl-pushnew 'dbusbind features)
      (qwen-companion-attention-notify event)
      (should (member "a &lt;b&gt;&amp;" sent))
      (setq sent nil)
      (setenv "DBUS_SESSION_BUS_ADDRESS" nil)
      (let ((system-type 'gnu/linux))
        (qwen-companion-attention-notify event))
      (should-not sent))))

(defconst qwen-companion-attention-test--desktop
  '(progn
     (require 'notifications)
     (require 'qwen-companion)
     (dbus-register-method
      :session notifications-service notifications-path notifications-interface
      notifications-notify-method
      (lambda (&rest arguments)
        (prin1 arguments)
        (kill-emacs)))
     (qwen-companion-attention-notify
      (make-qwen-companion-event :kind 'asks :text "Do <b>&"))
     (while t
       (read-event nil nil 1)))
  "A form for an Emacs that is a desktop, and notifies itself.")

(ert-deftest qwen-companion-attention-test-desktop-over-dbus ()
  "The service of the desktop gets the notification over a real D-Bus."
  (skip-unless (and (featurep 'dbusbind) (executable-find "dbus-daemon")))
  (with-temp-buffer
    (let* ((daemon (make-process
                    :name "dbus-daemon" :buffer (current-buffer) :noquery t
                    :stderr (make-pipe-process :name "dbus-errors" :filter #'ignore :noquery t)
                    :command '("dbus-daemon" "--session" "--nofork" "--print-address")))
           (root (file-name-directory (locate-library "qwen-companion"))))
      (unwind-protect
          (progn
            (qwen-companion-test-wait-for (string-search "\n" (buffer-string)))
            (let* ((process-environment
                    (cons (concat "DBUS_SESSION_BUS_ADDRESS=" (string-trim (buffer-string)))
                          process-environment))
                   (received ""))
              (let ((desktop (make-process
                              :name "desktop" :noquery t
                              :filter (lambda (_ text) (setq received (concat received text)))
                              :stderr (make-pipe-process :name "desktop-errors"
                                                         :filter #'ignore :noquery t)
                              :command
                              (list (expand-file-name invocation-name invocation-directory)
                                    "-Q" "--batch"
                                    "-l" (expand-file-name "scripts/checkout.el" root)
                                    "--eval"
                                    (prin1-to-string qwen-companion-attention-test--desktop)))))
                (unwind-protect
                    ;; Its last output may come after the news of its end.
                    (qwen-companion-test-wait-for (string-search "-1)" received))
                  (delete-process desktop)))
              (should (equal (prin1-to-string '("Emacs" 0 "emacs" "Qwen companion"
                                                "Do &lt;b&gt;&amp;" nil nil -1))
                             received))))
        (delete-process daemon)))))

(ert-deftest qwen-companion-attention-test-frame-title ()
  "The title says it until the terminal is selected, and is then as before."
  (let ((frame-title-format '("%b" " - Emacs"))
        (before '("%b" " - Emacs")))
    (with-temp-buffer
      (let ((event (make-qwen-companion-event :kind 'asks :text "CLI asks %b"
                                              :buffer (current-buffer))))
        (qwen-companion-attention-title event)
        (qwen-companion-attention-title event)
        (should (equal "[CLI asks %b] " (qwen-companion-attention--title-text)))
        (should (equal before (cadr frame-title-format)))
        (qwen-companion-attention--selection-changed (selected-frame))
        (should-not (equal before frame-title-format))
        (save-window-excursion
          (set-window-buffer (selected-window) (current-buffer))
          (qwen-companion-attention--selection-changed (selected-frame)))
        (should (equal before frame-title-format))
        (qwen-companion-attention-title event)
        (qwen-companion-attention-disable)
        (should (equal before frame-title-format))))))

(provide 'qwen-companion-attention-test)
;;; qwen-companion-attention-test.el ends here
