;;; qwen-companion-remote-test.el --- Tests of CLIs at other places  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Code:

(require 'qwen-companion)
(require 'qwen-companion-ask)
(require 'qwen-companion-changes-signs)
(require 'qwen-companion-follow)
(require 'qwen-companion-places)
(require 'qwen-companion-proposal)
(require 'qwen-companion-remote)
(require 'qwen-companion-review)
(require 'qwen-companion-tools-read)
(require 'qwen-companion-test-helper)
(require 'cl-extra)
(require 'etags)
(require 'imenu)
(require 'python)
(require 'tramp)
(require 'tramp-cmds)
(require 'tramp-sh)

(defmacro qwen-companion-remote-test--with (&rest body)
  "Run BODY with no place served, where TRAMP must not connect; return its value."
  (declare (indent 0))
  `(let ((qwen-companion-places--served nil)
         (qwen-companion-places--copies (make-hash-table :test #'equal))
         (qwen-companion-remote--sent nil)
         (qwen-companion-remote--directories nil)
         (qwen-companion-remote--waiting nil)
         (qwen-companion-backend--noticed nil)
         (calls nil))
     (cl-letf (((symbol-function 'tramp-maybe-open-connection)
                (lambda (&rest _) (error "TRAMP has connected")))
               ((symbol-function 'qwen-companion-backend-call)
                (lambda (method payload) (push (cons method payload) calls) t)))
       ,@body)))

(defun qwen-companion-remote-test--open (&rest directories)
  "Let DIRECTORIES be those that are open, and places be told of."
  (qwen-companion-remote--update directories))

(ert-deftest qwen-companion-remote-test-names-are-shown-with-their-place ()
  "A copy is named as its original, a name below the home directory by it."
  (qwen-companion-remote-test--with
    (qwen-companion-places-set "/ssh:me@far:" '(:name "/ssh:me@far:" :state ready :home "/home/me"
                                                      :roots ("/home/me/proj")))
    (qwen-companion-places-copy "/tmp/copy/a.py" "/ssh:me@far:/home/me/proj/a.py")
    (should (equal "me@far:~/proj/a.py" (qwen-companion-untrusted-path "/tmp/copy/a.py")))
    (qwen-companion-test-with-backend
      (let ((inhibit-message t)
            (qwen-companion-diff-arrival 'command))
        (should (equal "me@far:a.py" (qwen-companion-review-file (qwen-companion-test-propose "/tmp/copy/a.py" "x"))))))
    (should (equal "me@far:/home/meg/b" (qwen-companion-untrusted-path "/ssh:me@far:/home/meg/b")))
    (should (equal "/home/me/proj/a.py" (qwen-companion-places-path "/tmp/copy/a.py")))
    (should (equal "/ssh:me@far:/home/me/proj"
                   (qwen-companion-places-root "/ssh:me@far:/home/me/proj/sub")))
    (should-not (qwen-companion-places-root "/ssh:me@far:/home/me/project"))
    (should-not (qwen-companion-places-of "/ssh:me@fara:/home/me"))
    (should-not (qwen-companion-places-of "/home/me"))))

(ert-deftest qwen-companion-remote-test-names-in-prompts ()
  "A prompt has the names that its CLI knows, and goes to none of another place."
  (qwen-companion-remote-test--with
    (qwen-companion-places-set "/ssh:far:" '(:name "/ssh:far:" :state ready :roots ("/p")))
    (should (equal "a b.c" (qwen-companion-quote-relative-name "/ssh:far:/p/a b.c" "/ssh:far:/p")))
    (should (equal "/etc/x" (qwen-companion-quote-relative-name "/ssh:far:/etc/x" "/ssh:far:/p")))
    (should (equal "/ssh:other:/p/a" (qwen-companion-quote-relative-name "/ssh:other:/p/a" "/ssh:far:/p")))
    (let ((default-directory "/ssh:far:/p/sub/"))
      (should (equal "/ssh:far:/p" (qwen-companion-ask--current-root))))
    (cl-letf (((symbol-function 'qwen-companion-backend-sessions)
               (lambda () '((:id "1") (:id "2" :place "/ssh:far:"))))
              ((symbol-function 'qwen-companion-terminal-session-buffer) #'identity))
      (should (equal '("2") (mapcar #'qwen-companion-session-id
                                    (qwen-companion-ask--sessions "/ssh:far:/p"))))
      (should (equal '("1") (mapcar #'qwen-companion-session-id
                                    (qwen-companion-ask--sessions "/p"))))
      (should-error (qwen-companion-ask--sessions "/ssh:other:/p") :type 'user-error))))

(ert-deftest qwen-companion-remote-test-tools-know-remote-buffers ()
  "The tools tell a CLI there of the buffers of its place, and a CLI here of none."
  (qwen-companion-remote-test--with
    (qwen-companion-places-set "/ssh:far:" '(:name "/ssh:far:" :state ready :roots ("/p")))
    (with-temp-buffer
      (insert "def greet():\n    pass\n")
      (python-mode)
      (setq buffer-file-name "/ssh:far:/p/a.py"
            buffer-file-truename "/ssh:far:/p/a.py"
            default-directory "/ssh:far:/p/")
      (cl-flet ((ask (name roots &optional path)
                  (cdr (qwen-companion-tools--evaluate
                        (append (list :id 1 :name name :roots roots :everywhere (null roots))
                                (and path (list :arguments `(("path" ,path)))))))))
        (dolist (name '("buffer_text" "symbols"))
          (let ((answer (ask name '("/ssh:far:/p") "/ssh:far:/p/a.py")))
            (should (string-match-p "greet" (format "%S" (plist-get answer :items))))
            (should-not (plist-get answer :error))))
        (should (string-match-p "/ssh:far:/p/a.py"
                                (format "%S" (plist-get (ask "open_files" '("/ssh:far:/p")) :items))))
        (dolist (roots '(("/p") nil ("/ssh:other:/p")))
          (should-not (string-match-p "a.py" (format "%S" (ask "open_files" roots)))))
        (should (string-match-p
                 "not open" (plist-get (ask "symbols" '("/ssh:far:/p") "/ssh:far:/p/b.py") :error))))
      (set-buffer-modified-p nil)
      (setq buffer-file-name nil))))

(ert-deftest qwen-companion-remote-test-only-places-with-consent-are-wanted ()
  "Hops and ports go with them; without consent nothing is sent at all."
  (qwen-companion-remote-test--with
    (let ((qwen-companion-remote-places nil))
      (qwen-companion-remote-test--open "/ssh:far:/home/me/" "/tmp/")
      (should-not calls))
    (let ((qwen-companion-remote-places '(("/ssh:me@far#22:" . serve) ("/ssh:other:" . leave))))
      (qwen-companion-remote-test--open "/ssh:me@far#22:/home/me/a b/" "/ssh:other:/x/" "/tmp/")
      (let ((place (car (plist-get (cdar calls) :places))))
        (should (equal '((:method "ssh" :host "far" :user "me" :port "22")) (plist-get place :hops)))
        (should (equal '("/home/me/a b") (plist-get place :directories)))
        (should (equal qwen-companion-remote-keep (plist-get place :keep-s)))
        (should-not (plist-get place :files))
        (should (equal 1 (length (plist-get (cdar calls) :places)))))
      (should (equal '("/ssh:me@far#22:") (qwen-companion-places)))
      ;; So is each file that a buffer visits, also one that has never been shown.
      (with-temp-buffer
        (setq buffer-file-name "/ssh:me@far#22:/home/me/a b/c.txt")
        (qwen-companion-remote-test--open "/ssh:me@far#22:/home/me/a b/")
        (setq buffer-file-name nil))
      (should (equal '("/home/me/a b/c.txt") (plist-get (car (plist-get (cdar calls) :places)) :files)))
      (qwen-companion-remote-test--open "/ssh:me@far#22:/home/me/a b/")
      (setq calls (last calls))
      ;; The same again is not sent, and the last file closed is.
      (qwen-companion-remote-test--open "/ssh:me@far#22:/home/me/a b/")
      (should (equal 1 (length calls)))
      (qwen-companion-remote-test--open "/tmp/")
      (should (equal '(:places nil) (cdar calls))))))

(ert-deftest qwen-companion-remote-test-a-shared-directory-is-of-both ()
  "Its local buffers have a place served, and prompts about it go to CLIs there."
  (qwen-companion-remote-test--with
    (let ((qwen-companion-remote-places '(("/ssh:box:" . serve)))
          (qwen-companion-remote-shared-directories '(("/ssh:box:" ("/work/proj/" . "/home/me/src")))))
      (qwen-companion-remote-test--open "/home/me/src/sub/" "/home/me/srcs/")
      (let ((place (car (plist-get (cdar calls) :places))))
        (should (equal '("/work/proj/sub") (plist-get place :directories)))
        (should (equal '((:there "/work/proj" :here "/home/me/src")) (plist-get place :shared))))
      (cl-letf (((symbol-function 'qwen-companion-backend-sessions)
                 (lambda () '((:id "1" :place "/ssh:box:" :directory "/ssh:box:/work/proj")
                              (:id "2" :directory "/tmp"))))
                ((symbol-function 'qwen-companion-terminal-session-buffer) #'identity))
        (should (equal "1" (qwen-companion-session-id (qwen-companion-ask--choose "/home/me/src"))))
        (should (equal '("2") (mapcar #'qwen-companion-session-id
                                      (qwen-companion-ask--sessions "/home/me/other"))))))))

(ert-deftest qwen-companion-remote-test-the-mode-line-says-that-a-file-is-deleted ()
  "It says so until the file is there again."
  (let ((copy (make-temp-file "qwen-companion-copy-"))
        (file "/ssh:far:/p/a.py"))
    (unwind-protect
        (with-temp-buffer
          (setq buffer-file-name file)
          (cl-letf (((symbol-function 'get-file-buffer)
                     (let ((buffer (current-buffer))) (lambda (_file) buffer))))
            (pcase-dolist (`(,copied ,shown) `((nil " deleted") (,copy nil)))
              (qwen-companion-follow-far-on-file (list :name file :copy copied :time 1000))
              (let ((lighter (qwen-companion-follow-lighter)))
                (should (equal shown (and lighter (substring-no-properties lighter)))))))
          (set-buffer-modified-p nil)
          (setq buffer-file-name nil))
      (delete-file copy))))

(ert-deftest qwen-companion-remote-test-the-mode-line-calls-no-host ()
  "A name that ends in a colon makes `file-remote-p' ask the host for its home."
  (let ((file-name-handler-alist
         '(("\\`/ssh:" . (lambda (operation &rest _) (error "%s called" operation))))))
    (unwind-protect
        (progn
          (qwen-companion-places-set "/ssh:box#22|sudo:www@box:" '(:state failed))
          (qwen-companion-places-set "/ssh:box:" '(:state lost :retry-at 1003500))
          (cl-letf (((symbol-function 'float-time) (lambda (&rest _) 1000.0)))
            (should (equal (qwen-companion-remote-lighter) " box: back in 4 s www@box:failed"))))
      (qwen-companion-places-forget))))

(defun qwen-companion-remote-test--run-timers (called)
  "Run our timers until there are none; CALLED is called before each."
  (let ((left 30)
        timer)
    (while (and (> (cl-decf left) 0)
                (setq timer (cl-find-if #'qwen-companion-timers--ours-p
                                        (append timer-list timer-idle-list))))
      (cancel-timer timer)
      (funcall called (timer--function timer))
      (apply (timer--function timer) (timer--args timer)))))

(ert-deftest qwen-companion-remote-test-no-timer-and-no-message-calls-a-file-name-handler ()
  "Messages about a place, timers in its buffers and the mode line use names alone.
The handler returns what was asked, so that all goes on, and is reported."
  (let* ((running nil)
         (called nil)
         (copy (make-temp-file "qwen-companion-copy-" nil ".py" "def greet():\n    return 1\n"))
         (session '(:id "s" :directory "/ssh:far:/p" :place "/ssh:far:" :client "Qwen Code"
                        :pid -1 :family "qwen" :state (:activity idle :since 1)))
         (proposal (list :id "1" :session "s" :client "Qwen Code" :path copy :digest "d"
                         :text "def greet():\n    return 2\n" :copy-of "/ssh:far:/p/a.py"))
         (file-name-handler-alist
          (list (cons "\\`/ssh:"
                      (lambda (operation &rest arguments)
                        (push (list running operation) called)
                        (let ((file-name-handler-alist nil))
                          (pcase operation
                            ('file-remote-p "/ssh:far:")
                            ((or 'expand-file-name 'file-truename) (car arguments))
                            (_ (apply operation arguments))))))))
         (qwen-companion-diff-arrival 'now)
         (qwen-companion-tools--directories '("/ssh:far:/p")))
    (unwind-protect
        (qwen-companion-remote-test--with
          (with-temp-buffer
            (insert "def greet():\n    pass\n")
            (python-mode)
            (setq buffer-file-name "/ssh:far:/p/a.py"
                  buffer-file-truename buffer-file-name
                  default-directory "/ssh:far:/p/")
            (set-visited-file-modtime 0)
            (set-buffer-modified-p nil)
            (setq called nil)
            (qwen-companion-test-with-backend
              (cl-flet ((receive (method payload)
                          (setq running method)
                          (qwen-companion-buffers-locally
                            (funcall (alist-get method qwen-companion--methods) payload))
                          (qwen-companion-remote-test--run-timers
                           (lambda (timer) (setq running timer)))))
                (cl-letf (((symbol-function 'qwen-companion-follow--active-p) #'always)
                          ((symbol-function 'qwen-companion-follow--poll-later) #'ignore)
                          ((symbol-function 'qwen-companion-merge-texts) #'ignore)
                          ((symbol-function 'qwen-companion-environment-updated-p) #'ignore))
                  (should (qwen-companion-privacy-secret-p (current-buffer)))
                  (receive 'place '(:name "/ssh:far:" :state connecting))
                  (receive 'place '(:name "/ssh:far:" :state ready :home "/home/me" :roots ("/p")
                                          :environment (("PORT" "1"))))
                  (should-not (qwen-companion-privacy-secret-p (current-buffer)))
                  (receive 'sessions (list :sessions (list session)))
                  (receive 'exclusions '(:exclusions ((:path "/ssh:far:/p/b" :rule "ignored by git"))))
                  (receive 'edit-begins '(:path "/ssh:far:/p/a.py"))
                  (receive 'place-file (list :name "/ssh:far:/p/a.py" :copy copy :time 1000))
                  (receive 'place-file '(:name "/ssh:far:/p/a.py" :time 0))
                  (receive 'place-files '(:place "/ssh:far:" :directory "/p" :files ("a.py")))
                  (receive 'proposal-open proposal)
                  (receive 'proposal-released '(:id "1" :reason "late" :answerable t))
                  (receive 'proposal-close '(:id "1"))
                  (receive 'proposal-open
                           '(:id "2" :session "s" :client "Qwen Code" :path "/tmp/none/plan.md"
                                 :digest "d" :text "A plan.\n" :kind plan
                                 :directory "/ssh:far:/p" :held t))
                  (receive 'proposal-close '(:id "2"))
                  (receive 'journal-turns
                           `(:turns ((:id "t" :root "/ssh:far:/p" :session "s" :client "Qwen Code"
                                          :who agent :start 1 :prompt "do" :files nil))))
                  (dolist (tool '("open_files" "buffer_text" "symbols" "diagnostics"))
                    (setq running tool)
                    (qwen-companion-tools--evaluate
                     (list :id 1 :name tool :roots '("/ssh:far:/p")
                           :arguments '(("path" "/ssh:far:/p/a.py")))))
                  (setq running 'update)
                  (qwen-companion-remote--update '("/ssh:far:/p/"))
                  (dolist (function '(qwen-companion-follow--poll qwen-companion-context-payload
                                      qwen-companion--lighter-parts))
                    (setq running function)
                    (funcall function))
                  (setq running 'signs)
                  (let ((qwen-companion-changes-signs--queue nil)
                        (qwen-companion-changes-signs--timer t))
                    (qwen-companion-changes-signs--changed t))
                  (should-not (delete-dups called)))))
            (set-buffer-modified-p nil)
            (setq buffer-file-name nil)))
      (delete-file copy))))

(ert-deftest qwen-companion-remote-test-the-mode-line-counts-down-until-it-is-back ()
  (qwen-companion-remote-test--with
    (let ((updates 0)
          (place '(:name "/ssh:far:" :state ready)))
      (cl-letf (((symbol-function 'force-mode-line-update) (lambda (&rest _) (cl-incf updates)))
                ((symbol-function 'qwen-companion-remote--set-environment) #'ignore))
        (qwen-companion-remote-on-place place)
        (should-not qwen-companion-remote--timer)
        (qwen-companion-remote-on-place
         `(:name "/ssh:far:" :state lost :retry-at ,(truncate (* 1000 (+ 60 (float-time))))))
        (let ((before updates))
          (timer-event-handler qwen-companion-remote--timer)
          (should (< before updates)))
        (should qwen-companion-remote--timer)
        (qwen-companion-remote-on-place place)
        (should-not qwen-companion-remote--timer)
        (qwen-companion-remote-on-place
         `(:name "/ssh:far:" :state lost :retry-at ,(truncate (* 1000 (+ 60 (float-time))))))
        (qwen-companion-remote-disable)
        (should-not qwen-companion-remote--timer)))))

(ert-deftest qwen-companion-remote-test-places-are-tried-again-on-demand ()
  (qwen-companion-remote-test--with
    (let ((qwen-companion-remote-places '(("/ssh:far:" . serve))))
      (qwen-companion-remote-test--open "/ssh:far:/p/")
      (setq calls nil)
      (qwen-companion-remote-retry)
      (should (equal '(places) (mapcar #'car calls))))))

(ert-deftest qwen-companion-remote-test-a-refusal-is-kept-and-told ()
  "The question comes once."
  (qwen-companion-remote-test--with
    (let ((qwen-companion-remote-places nil)
          (asked 0))
      (cl-letf (((symbol-function 'yes-or-no-p) (lambda (_) (cl-incf asked) nil))
                ((symbol-function 'customize-save-variable)
                 (lambda (_ value) (setq qwen-companion-remote-places value))))
        (dotimes (_ 2)
          (should-error (qwen-companion-remote-check "/ssh:far:") :type 'user-error)))
      (should (equal 1 asked))
      (should-not calls))))

(ert-deftest qwen-companion-remote-test-programs-there-get-the-variables ()
  "Programs at the place alone get them, beside the variables of the user."
  (qwen-companion-remote-test--with
    (let ((connection-local-profile-alist nil)
          (connection-local-criteria-alist nil)
          (theirs '("EDITOR=vi")))
      (connection-local-set-profile-variables 'theirs `((tramp-remote-process-environment . ,theirs)))
      (connection-local-set-profiles '(:application tramp :machine "far") 'theirs)
      (cl-flet ((known (place)
                  (let ((default-directory place))
                    (with-connection-local-variables tramp-remote-process-environment))))
        (let ((before (list connection-local-profile-alist connection-local-criteria-alist)))
          (dolist (port '("1" "2"))
            (qwen-companion-remote-on-place
             `(:name "/ssh:me@far:" :state ready :environment (("PORT" ,port) ("ROOTS" "/a b=c"))))
            (should (equal `(,(concat "PORT=" port) "ROOTS=/a b=c" "EDITOR=vi") (known "/ssh:me@far:/p/")))
            (should (equal theirs (known "/ssh:you@far:/p/"))))
          ;; TRAMP gives both the same: those of one would lead to the relay of the other.
          (qwen-companion-remote-on-place
           '(:name "/ssh:near|ssh:me@far:" :state ready :environment (("PORT" "3"))))
          (dolist (place '("/ssh:me@far:/p/" "/ssh:near|ssh:me@far:/p/"))
            (should (equal theirs (known place))))
          (qwen-companion-remote-disable)
          (should (equal theirs (known "/ssh:me@far:/p/")))
          (should (equal before (list connection-local-profile-alist
                                      connection-local-criteria-alist))))))))

;; The Python process cannot read text properties, which TRAMP has on hops.
(ert-deftest qwen-companion-remote-test-a-place-behind-hops-is-sent-as-plain-text ()
  "A place is told with each hop on the way, in a form that has no properties."
  (qwen-companion-remote-test--with
    (let* ((tramp-default-proxies-alist nil)
           (directory "/ssh:me@near#22|ssh:far:/p/")
           ;; Without its hops since Emacs 29; TRAMP knows them.
           (qwen-companion-remote-places `((,(file-remote-p directory) . serve))))
      (qwen-companion-remote-test--open directory)
      (should (equal (prin1-to-string '((:method "ssh" :host "near" :user "me" :port "22")
                                        (:method "ssh" :host "far")))
                     (prin1-to-string
                      (plist-get (car (plist-get (cdar calls) :places)) :hops)))))))

(ert-deftest qwen-companion-remote-test-a-terminal-at-an-unknown-place-is-hinted-at ()
  "Once, and only where a CLI may be started by hand."
  (qwen-companion-remote-test--with
    (let ((qwen-companion-remote-places '(("/ssh:other:" . leave))))
      (with-temp-buffer
        (setq default-directory "/ssh:far:/p/")
        (cl-flet ((told () (qwen-companion-test-messages
                             (qwen-companion-remote-test--open "/ssh:far:/p/" "/ssh:other:/p/"))))
          (should (equal "" (told)))
          (setq major-mode 'eshell-mode)
          (should (string-match-p "M-x qwen-companion-serve-place .*/ssh:far:" (told)))
          (should (equal "" (told))))))))

(ert-deftest qwen-companion-remote-test-files-there-complete-after-at ()
  "Their names are asked for without TRAMP, and kept for a while."
  (qwen-companion-remote-test--with
    (clrhash qwen-companion-prompt-completion--remote-files)
    (with-temp-buffer
      (insert "see @a")
      (cl-flet ((complete ()
                  (all-completions "a" (nth 2 (qwen-companion-prompt-completion-file "/ssh:far:/p" 1)))))
        (should-not (complete))
        (should (equal '((list-place-files :place "/ssh:far:" :directory "/p")) calls))
        (qwen-companion-prompt-completion-on-place-files
         '(:place "/ssh:far:" :directory "/p" :files ("a b.py" "sub/a" "aa")))
        (should (equal '("a\\ b.py" "aa") (complete)))
        (should (length= calls 1))))))

(ert-deftest qwen-companion-remote-test-a-proposal-of-no-served-place-is-refused ()
  "A remote name that a CLI of this machine says is refused too."
  (qwen-companion-remote-test--with
    (let ((payload (list :id "1" :session "s" :client "c" :path "/tmp/none/a.txt" :digest "d"
                         :text "x" :copy-of "/ssh:far:/home/me/a.txt")))
      (should (string-match-p "does not serve" (qwen-companion-proposal-on-open payload)))
      (should-not (qwen-companion-proposals))
      (should (equal "/tmp/none/a.txt" (qwen-companion-places-name "/tmp/none/a.txt")))
      (should (string-match-p
               "local files"
               (qwen-companion-proposal-on-open
                (list :id "2" :session "s" :client "c" :path "/ssh:far:/home/me/a.txt"
                      :digest "d" :text "x")))))))

(provide 'qwen-companion-remote-test)
;;; qwen-companion-remote-test.el ends here
