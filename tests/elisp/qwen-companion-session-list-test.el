;;; qwen-companion-session-list-test.el --- Tests of the list of CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What the list of connected CLIs says, its keys, and the way to the next
;; that waits.

;;; Code:

(require 'bookmark)
(require 'desktop)
(require 'project)
(require 'saveplace)
(require 'qwen-companion-changes)
(require 'qwen-companion-chat-permissions)
(require 'qwen-companion-test-helper)

(defconst qwen-companion-session-list-test--root
  (file-name-directory (locate-library "qwen-companion"))
  "Directory of the package.")

(defmacro qwen-companion-session-list-test--with (sessions &rest body)
  "Run BODY with SESSIONS connected, the file a.txt, and the list shown."
  (declare (indent 1) (debug t))
  `(qwen-companion-test-with-backend
     (qwen-companion-test-with-files '(("a.txt" "one\n"))
       (let ((qwen-companion-diff-arrival 'command)
             (qwen-companion-session-list--last nil))
         (qwen-companion-test-with-state 'ready
           (qwen-companion-test-with-sessions ,sessions
             (save-window-excursion
               (set-frame-size (selected-frame) 150 44)
               (qwen-companion-sessions)
               (unwind-protect
                   (progn ,@body)
                 (qwen-companion-list-close 'qwen-companion-sessions-mode)))))))))

(defun qwen-companion-session-list-test--session (id &rest keys)
  "Return a session ID with KEYS."
  (append keys (list :id id :client "Qwen Code" :version "0.24.4")))

(defun qwen-companion-session-list-test--rows ()
  "Return the rows of the list as they are soon, without the columns' widths."
  (with-current-buffer "*qwen-companion sessions*"
    (qwen-companion-timers-update-visible)
    (mapcar (lambda (line) (replace-regexp-in-string "  +" "|" (string-trim line)))
            (cdr (split-string (buffer-string) "\n" t)))))

(ert-deftest qwen-companion-session-list-test-says-what-each-does ()
  (let ((now (truncate (* 1000 (float-time)))))
    (qwen-companion-session-list-test--with
        (list (qwen-companion-session-list-test--session
               "a" :directory "/home/me/site" :pid 12
               :usage '((:model "big\nmodel" :input 12300 :output 400 :cached 8000)
                        (:model "small" :input 20 :output 5 :cached 0))
               :state (list :activity 'working :since (- now 130500) :prompt "Do\nit"
                            :todos '((:text "read" :status done) (:text "test" :status pending))))
              (qwen-companion-session-list-test--session
               "b" :directory "/home/me/lib"
               :state (list :activity 'asking :since now :question "Run make?"))
              (qwen-companion-session-list-test--session "c" :no-hooks "it is old")
              (qwen-companion-session-list-test--session
               "d" :directory "/home/me/app"
               :state (list :activity 'idle :since now :prompt "Do it" :said "Done.\u202E Tests?"))
              (qwen-companion-session-list-test--session
               "e" :directory "/home/me/api"
               :state (list :activity 'failed :since (- now 1000) :prompt "Do it"
                            :failure "limit"))
              (qwen-companion-session-list-test--session
               "f" :directory "/home/me/new" :state '(:activity idle))
              (qwen-companion-session-list-test--session
               "g" :directory "/home/me/peer" :state '(:activity idle :tokens 7)))
      ;; Those that wait come first, the longest first.
      (should (equal '("Qwen Code 0.24.4|api|failed: limit|N s|limit"
                       "Qwen Code 0.24.4|lib|asking|N s|Run make?"
                       "Qwen Code 0.24.4|site|working 1/2|2 min|12.7k outside Emacs|Do\\nit"
                       "Qwen Code 0.24.4|connected|it is old"
                       "Qwen Code 0.24.4|app|done|N s|Done.\\u202E Tests?"
                       "Qwen Code 0.24.4|new|ready"
                       "Qwen Code 0.24.4|peer|done|7")
                     (mapcar (lambda (row) (replace-regexp-in-string "|[0-9]+ s|" "|N s|" row))
                             (qwen-companion-session-list-test--rows))))
      (should (eq 'warning (get-text-property
                            0 'face (aref (cadr (nth 1 tabulated-list-entries)) 2))))
      (should (equal "big model 12.3k in (8k cached), 400 out; small 20 in, 5 out"
                     (get-text-property
                      0 'help-echo (aref (cadr (nth 2 tabulated-list-entries)) 5)))))))

(ert-deftest qwen-companion-session-list-test-sends-a-failed-request-again ()
  "By the key that Qwen Code has for that, in its terminal."
  (qwen-companion-session-list-test--with
      (list (qwen-companion-session-list-test--session
             "a" :state '(:activity failed :since 1 :failure "rate limit"))
            (qwen-companion-session-list-test--session "b" :state '(:activity idle :since 1)))
    (qwen-companion-test-first-row)
    (qwen-companion-test-refused "outside of Emacs; Ctrl\\+Y there"
      (call-interactively (key-binding "y")))
    (with-temp-buffer
      (let ((terminal (current-buffer)) sent)
        (cl-letf (((symbol-function 'qwen-companion-terminal-session-buffer)
                   (lambda (_session) terminal))
                  ((symbol-function 'process-live-p) #'always)
                  ((symbol-function 'process-send-string)
                   (lambda (_process key) (push key sent))))
          (with-current-buffer "*qwen-companion sessions*"
            (call-interactively (key-binding "y"))
            (should (equal '("\C-y") sent))
            (forward-line)
            (qwen-companion-test-refused "No request of this CLI has failed"
              (call-interactively (key-binding "y")))))))))

(defun qwen-companion-session-list-test--registered (id &rest keys)
  "Return a registered CLI ID with KEYS."
  (append keys (list :id id :pid 7 :session "s" :directory "/home/me/site" :name "site-b7"
                     :version "0.24.4" :kind 'tui :start 1)))

(ert-deftest qwen-companion-session-list-test-shows-clis-that-are-not-connected ()
  "They come as the Python process tells of them, and go; one that is connected has one row."
  (let* ((now (truncate (* 1000 (float-time))))
         (qwen-companion-registry--clis nil)
         (qwen-companion-registry--by-key (make-hash-table :test #'equal)))
    (qwen-companion-session-list-test--with
        (list (qwen-companion-session-list-test--session
               "a" :directory "/home/me/site" :pid 12 :state (list :activity 'idle :since now)))
      (cl-flet ((told (gone &rest clis)
                  (qwen-companion-registry-on-registered
                   (list :clis clis :gone gone :controller 'none)))
                (cli (&rest arguments)
                  (apply #'qwen-companion-session-list-test--registered arguments))
                (rows ()
                  (mapcar (lambda (row) (replace-regexp-in-string "|[0-9]+ [shd]|" "|N|" row))
                          (cdr (qwen-companion-session-list-test--rows)))))
        (told nil (cli "12" :pid 12))
        (should-not (rows))
        (told nil
              (cli "13" :pid 13 :start (- now 100))
              (cli "14-0" :pid 14 :start (- now 50) :kind 'serve :editor "Emacs" :name "x\n%s")
              (cli "15" :pid 15 :directory nil :name "" :version "" :start 0
                   :problem "its record cannot be used: it is a symbolic link")
              (cli "16" :pid 16 :start now
                   :state (list :activity 'working :since now :prompt "Do it")))
        (should (equal '("Qwen Code|unusable|terminal process 15|its record cannot be used: it is a symbolic link"
                         "Qwen Code 0.24.4|site|no editor|N|terminal site-b7|/home/me/site"
                         "Qwen Code 0.24.4|site|elsewhere|N|daemon x %s|/home/me/site, connected to Emacs"
                         "Qwen Code 0.24.4|site|working|N|terminal site-b7|Do it, /home/me/site")
                       (rows)))
        (qwen-companion-test-first-row)
        (search-forward "no editor")
        (qwen-companion-test-refused "outside of Emacs, process 13"
          (call-interactively #'qwen-companion-session-list-visit))
        (qwen-companion-test-answering t
          (call-interactively #'qwen-companion-session-list-end))
        (should (equal '((:cli "13")) (qwen-companion-test-sent 'registry-end)))
        (told '("13" "14-0" "15") (cli "16" :pid 16 :gone t))
        (should (equal '("Qwen Code 0.24.4|site|gone|N|terminal site-b7|/home/me/site")
                       (rows)))
        (qwen-companion-test-first-row)
        (search-forward "gone")
        (qwen-companion-test-answering (lambda (_) (error "Asked"))
          (should-error (call-interactively #'qwen-companion-session-list-end)
                        :type 'user-error))
        ;; A chat has used what its turns have used.
        (told '("16") (cli "17" :pid 17 :kind 'serve :chat "chat"))
        (unwind-protect
            (progn
              (qwen-companion-journal-on-turns
               (list :turns
                     (list (list :id "1" :root "/home/me/site" :conversation "chat" :start 1
                                 :usage '((:model "m" :input 900 :output 100 :cached 0)))
                           (list :id "2" :root "/home/me/site" :conversation "chat" :start 2
                                 :usage '((:model "m" :input 1000 :output 500 :cached 1)))
                           (list :id "3" :root "/home/me/site" :conversation "another" :start 3
                                 :usage '((:model "m" :input 1 :output 1 :cached 0))))))
              (qwen-companion-timers-update-visible)
              (should (equal '("2.5k")
                             (mapcar (lambda (entry) (aref (cadr entry) 5))
                                     (cdr tabulated-list-entries))))
              (should (equal "m 1.9k in (1 cached), 600 out"
                             (get-text-property
                              0 'help-echo (aref (cadr (nth 1 tabulated-list-entries)) 5)))))
          (qwen-companion-journal-disable))
        (qwen-companion-registry-forget)
        (should-not (rows))))))

(ert-deftest qwen-companion-session-list-test-many-clis-are-no-burden ()
  "Looking for each among all took Emacs minutes.  The first rows are drawn, those that wait too."
  (let ((qwen-companion-registry--clis nil)
        (qwen-companion-registry--by-key (make-hash-table :test #'equal)))
    (qwen-companion-session-list-test--with nil
      (let ((clis (mapcar (lambda (number)
                            (qwen-companion-session-list-test--registered
                             (format "12-%08x" number) :pid 12 :start number))
                          (number-sequence 1 2000)))
            (drawn 0))
        (setcar (last clis) (append '(:state (:activity asking :since 1)) (car (last clis))))
        (cl-letf* ((draw (symbol-function 'qwen-companion-list--draw))
                   ((symbol-function 'qwen-companion-list--draw)
                    (lambda () (cl-incf drawn) (funcall draw))))
          (dolist (some (seq-partition clis 20))
            (qwen-companion-registry-on-registered (list :clis some :controller 'none)))
          (should (= 0 drawn))
          (let ((rows (qwen-companion-session-list-test--rows)))
            (should (= 1 drawn))
            (should (= 301 (length rows)))
            (should (string-match-p "asking" (car rows)))
            (should (equal "1700 more" (car (last rows))))))))))

(ert-deftest qwen-companion-session-list-test-nothing-is-restored ()
  "Neither desktop, bookmark nor `save-place' keeps a list, a prompt or a review."
  (qwen-companion-session-list-test--with nil
    (let ((buffers (list (get-buffer "*qwen-companion sessions*")))
          (save-place-alist nil)
          (save-place-loaded t))
      (qwen-companion-diff-open (qwen-companion-test-propose "a.txt" "two\n"))
      (let ((qwen-companion-diff-style 'unified))
        (qwen-companion-diff-open (qwen-companion-test-propose "b.txt" "two\n")))
      (dolist (buffer (buffer-list))
        (when (buffer-local-value 'qwen-companion-proposal-current buffer)
          (push buffer buffers)))
      (should (cdr buffers))
      (qwen-companion-ask t)
      (push (current-buffer) buffers)
      (unwind-protect
          (dolist (buffer buffers)
            (with-current-buffer buffer
              (unless buffer-file-name
                (should-not (desktop-save-buffer-p nil (buffer-name) major-mode))
                (should-error (bookmark-make-record))
                (goto-char (point-max))
                (let ((save-place-mode t))
                  (save-place-to-alist))
                (should-not save-place-alist))))
        (kill-buffer (car buffers))))))

(ert-deftest qwen-companion-session-list-test-switching-to-a-project ()
  "The entry that the manual gives runs a CLI in the project switched to."
  (qwen-companion-test-with-files '((".git/HEAD" "ref: refs/heads/main\n"))
    (let ((manual (with-temp-buffer
                    (insert-file-contents
                     (expand-file-name "docs/qwen-companion.org" qwen-companion-session-list-test--root))
                    (re-search-forward "=\\((add-to-list 'project-switch-commands .*)\\)= in")
                    (match-string 1)))
          (root default-directory)
          (project-switch-commands nil)
          (project-list-file (expand-file-name "projects"))
          started)
      (eval (read manual) t)
      (should (equal '((qwen-companion-run "Qwen" ?q)) project-switch-commands))
      (cl-letf (((symbol-function 'qwen-companion-start-cli)
                 (lambda (directory &rest _) (push directory started))))
        (with-temp-buffer
          (setq default-directory "/")
          (let ((unread-command-events (list ?q)))
            (project-switch-project root)))
        (should (file-equal-p root (car started)))
        (should-not (cdr started))))))

(ert-deftest qwen-companion-session-list-test-files-and-changes ()
  "The number of files that a CLI has changed; `c' opens its changes."
  (qwen-companion-session-list-test--with
      (list (qwen-companion-session-list-test--session "a")
            (qwen-companion-session-list-test--session "b"))
    (should (qwen-companion-journal-watched-p))
    (qwen-companion-journal-on-turns
     '(:turns ((:id "1" :root "/r" :session "s" :cli "a" :who agent :source hooks :start 1
                :files ((:path "/r/one" :kind modified) (:path "/r/two" :kind added)))
               (:id "2" :root "/r" :session "s" :cli "a" :who agent :source hooks :start 2
                :files ((:path "/r/one" :kind modified))))))
    (should (equal '("Qwen Code 0.24.4|connected|2" "Qwen Code 0.24.4|connected")
                   (qwen-companion-session-list-test--rows)))
    (qwen-companion-test-first-row)
    (let (shown)
      (cl-letf (((symbol-function 'qwen-companion-changes-of-session)
                 (lambda (turn) (setq shown (qwen-companion-turn-id turn)))))
        (call-interactively (key-binding "d"))
        (should (equal "2" shown))
        (forward-line)
        (should-error (call-interactively (key-binding "d")) :type 'user-error))))
  (should-not (qwen-companion-journal-watched-p)))

(ert-deftest qwen-companion-session-list-test-follows ()
  "Point stays on its CLI when others come and go, and the list with none says so."
  (qwen-companion-session-list-test--with
      (list (qwen-companion-session-list-test--session "a")
            (qwen-companion-session-list-test--session "b"))
    (qwen-companion-test-first-row)
    (forward-line)
    (should (equal "b" (tabulated-list-get-id)))
    (qwen-companion-test-set-sessions (cdr (qwen-companion-backend-sessions)))
    (qwen-companion-timers-update-visible)
    (should (equal "b" (tabulated-list-get-id)))
    (should (= 1 (length (qwen-companion-test-sent 'registry-look))))
    (call-interactively (key-binding "g"))
    (should (= 2 (length (qwen-companion-test-sent 'registry-look))))
    (should (equal "b" (tabulated-list-get-id)))
    (qwen-companion-test-set-sessions nil)
    (qwen-companion-timers-update-visible)
    (should (equal '("No CLI is connected") (qwen-companion-session-list-test--rows)))
    (should-error (call-interactively #'qwen-companion-session-list-visit) :type 'user-error)
    (bury-buffer)
    (with-current-buffer "*qwen-companion sessions*"
      (qwen-companion-timers-update-visible))
    (should-not (qwen-companion-test-ticking))))

(ert-deftest qwen-companion-session-list-test-reviews ()
  (qwen-companion-session-list-test--with
      (list (qwen-companion-session-list-test--session "a")
            (qwen-companion-session-list-test--session "s" :state '(:activity working)))
    (qwen-companion-test-first-row)
    (should-error (call-interactively #'qwen-companion-session-list-review) :type 'user-error)
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n" :session "s")))
      (should (equal "Qwen Code 0.24.4|reviewing" (car (qwen-companion-session-list-test--rows))))
      (qwen-companion-test-first-row)
      (call-interactively #'qwen-companion-session-list-review)
      (should (eq 'shown (qwen-companion-proposal-state proposal))))))

(ert-deftest qwen-companion-session-list-test-next-waiting ()
  "It visits each waiting CLI and chat in turn; without one it signals an error."
  (qwen-companion-session-list-test--with
      (list (qwen-companion-session-list-test--session "a" :state '(:activity asking))
            (qwen-companion-session-list-test--session "b" :state '(:activity working))
            (qwen-companion-session-list-test--session "c" :state '(:activity asking)))
    (let ((terminals '(("a" . "terminal a") ("c" . "terminal c"))))
      (cl-letf (((symbol-function 'qwen-companion-terminal-session-buffer)
                 (lambda (session)
                   (get-buffer-create
                    (cdr (assoc (qwen-companion-session-id session) terminals))))))
        (let* ((chats (list (generate-new-buffer "chat 1") (generate-new-buffer "chat 2")))
               (qwen-companion-chat-permissions--waiting-chats (copy-sequence chats))
               seen)
          (dolist (chat chats)
            (with-current-buffer chat
              (setq qwen-companion-chat-permissions--items
                    (list (qwen-companion-chat-permissions--make :report '(:permission "1"))))))
          (dotimes (_ 5)
            (qwen-companion-next-waiting)
            (push (buffer-name (window-buffer (selected-window))) seen))
          (should (equal '("terminal a" "chat 2" "chat 1" "terminal c" "terminal a") seen))
          (mapc #'kill-buffer chats))
        (qwen-companion-test-set-sessions (list (qwen-companion-session-list-test--session "b" :state '(:activity idle))))
        (should-error (qwen-companion-next-waiting) :type 'user-error)
        (mapc (lambda (terminal) (kill-buffer (cdr terminal))) terminals)))))

(ert-deftest qwen-companion-session-list-test-next-waiting-goes-to-the-open-review ()
  "Not to the terminal, which asks about the same edit in mode default."
  (qwen-companion-session-list-test--with
      (list (qwen-companion-session-list-test--session "s" :state '(:activity asking)))
    (let ((proposal (qwen-companion-test-propose "a.txt" "two\n" :session "s")))
      (qwen-companion-next-waiting)
      (should (eq 'shown (qwen-companion-proposal-state proposal))))))

(ert-deftest qwen-companion-session-list-test-next-waiting-finds-a-cli-outside ()
  (let ((qwen-companion-registry--clis nil)
        (qwen-companion-registry--by-key (make-hash-table :test #'equal)))
    (qwen-companion-session-list-test--with nil
      (qwen-companion-registry-on-registered
       (list :clis (list (qwen-companion-session-list-test--registered "12" :pid 12)
                         (qwen-companion-session-list-test--registered
                          "13" :pid 13 :state '(:activity asking :since 1 :question "probably asks")))
             :controller 'none))
      (with-temp-buffer
        (should (string-match-p "outside of Emacs, process 13"
                                (qwen-companion-test-messages (qwen-companion-next-waiting))))
        (should (equal "13" (tabulated-list-get-id)))))))

(ert-deftest qwen-companion-session-list-test-states-by-the-record ()
  "It tells of retries, probable questions and tokens; the help names those that wait."
  (let ((qwen-companion-registry--clis nil)
        (qwen-companion-registry--by-key (make-hash-table :test #'equal))
        (now (truncate (* 1000 (float-time)))))
    (qwen-companion-session-list-test--with
        (list (qwen-companion-session-list-test--session
               "a" :directory "/home/me/app" :pid 12
               :state (list :activity 'working :since (- now 90500) :prompt "Do it")))
      (qwen-companion-registry-on-registered
       (list :clis (list (qwen-companion-session-list-test--registered
                          "12" :pid 12
                          :state (list :activity 'retrying :since (- now 5500)
                                       :failure "too many requests"))
                         (qwen-companion-session-list-test--registered
                          "13" :pid 13 :start 2
                          :state (list :activity 'working :since (- now 90500) :tokens 1200
                                       :prompt "Make it" :tool-since (- now 40500)))
                         (qwen-companion-session-list-test--registered
                          "14" :pid 14 :start 3
                          :state (list :activity 'working :since (- now 20500)
                                       :prompt "Go on" :tool-since (- now 500))))
             :controller 'none))
      (should (equal '("Qwen Code 0.24.4|site|probably asks|40 s|1.2k terminal site-b7|Make it, /home/me/site"
                       "Qwen Code 0.24.4|app|retrying|5 s|outside Emacs|too many requests"
                       "Qwen Code 0.24.4|site|working|20 s|terminal site-b7|Go on, /home/me/site")
                     (qwen-companion-session-list-test--rows)))
      (should (string-match-p "\\`Qwen Code 13 in site probably asks since 40 s: Make it, /home/me/site$"
                              (qwen-companion-session-list-help)))
      (qwen-companion-test-first-row)
      (should (string-match-p "\\` 3 CLIs  1 waits for you  r prompt  d changes"
                              (qwen-companion-test-header)))
      (with-temp-buffer
        (qwen-companion-next-waiting)
        (should (equal "13" (tabulated-list-get-id)))))))

(ert-deftest qwen-companion-session-list-test-header-shows-the-keys-of-the-row ()
  "Those that work for the CLI at point, as the user has bound them; and all fits."
  (qwen-companion-session-list-test--with
      (list (qwen-companion-session-list-test--session
             "a" :state '(:activity failed :since 1 :failure "limit"))
            (qwen-companion-session-list-test--session "b" :state '(:activity idle :since 1)))
    (set-frame-size (selected-frame) 80 24)
    (should (equal '(" Qwen Code 0.24.4             failed: limit      " "    limit")
                   (let ((rows (progn (qwen-companion-timers-update-visible)
                                      (qwen-companion-test-first-row)
                                      (split-string (buffer-substring-no-properties
                                                     (point) (point-max))
                                                    "\n"))))
                     (should (<= (string-width (car rows)) 79))
                     (list (substring (car rows) 0 49) (cadr rows)))))
    (qwen-companion-test-first-row)
    (should (qwen-companion-test-header-p "y try again  r prompt"))
    (let ((map (copy-keymap qwen-companion-sessions-mode-map)))
      (define-key map "T" #'qwen-companion-session-list-retry)
      (define-key map "y" nil)
      (use-local-map map)
      (setq qwen-companion-header--keys nil)
      (should (qwen-companion-test-header-p "T try again  r prompt")))
    (forward-line 2)
    (should (qwen-companion-test-header-p "waits for you  r prompt"))
    (goto-char (point-min))
    (should-not (qwen-companion-test-header-p "prompt\\|end"))))

(ert-deftest qwen-companion-session-list-test-end ()
  "It ends after a question, unless it is gone by then."
  (let ((process (start-process "sleep" nil "sleep" "600")))
    (set-process-query-on-exit-flag process nil)
    (unwind-protect
        (qwen-companion-session-list-test--with
            (list (qwen-companion-session-list-test--session "a" :pid (process-id process)))
          (qwen-companion-test-first-row)
          (qwen-companion-test-answering nil
            (call-interactively #'qwen-companion-session-list-end)
            (should (process-live-p process)))
          (qwen-companion-test-answering
              (lambda (_)
                (qwen-companion-test-set-sessions nil)
                t)
            (should-error (call-interactively #'qwen-companion-session-list-end) :type 'user-error)
            (should (process-live-p process)))
          (qwen-companion-test-set-sessions (list (qwen-companion-session-list-test--session "a" :pid (process-id process))))
          (qwen-companion-timers-update-visible)
          (qwen-companion-test-first-row)
          (qwen-companion-test-answering t
            (call-interactively #'qwen-companion-session-list-end)
            (while (process-live-p process)
              (accept-process-output process))
            (should (equal 15 (process-exit-status process)))))
      (delete-process process))))

(ert-deftest qwen-companion-session-list-test-end-at-a-place ()
  "A program there ends it, and no process here that has its number."
  (let ((process (start-process "sleep" nil "sleep" "600"))
        ran)
    (set-process-query-on-exit-flag process nil)
    (unwind-protect
        (qwen-companion-session-list-test--with
            (list (qwen-companion-session-list-test--session
                   "a" :place "/ssh:far:" :directory "/ssh:far:/home/project"
                   :ancestors (list (process-id process) 1)))
          (qwen-companion-test-first-row)
          ;; Of a long name the end, which tells projects there apart.
          (should (string-suffix-p "e/project" (aref (tabulated-list-get-entry) 1)))
          (cl-letf (((symbol-function 'process-file)
                     (lambda (program _infile _buffer _display &rest arguments)
                       (setq ran (cons default-directory (cons program arguments)))
                       0)))
            (qwen-companion-test-answering
                (lambda (question)
                  (should (string-search (format "process %d at far?" (process-id process)) question))
                  t)
              (call-interactively #'qwen-companion-session-list-end)))
          (should (equal (list "/ssh:far:/" "kill" (number-to-string (process-id process))) ran))
          (should (process-live-p process)))
      (delete-process process))))

(provide 'qwen-companion-session-list-test)
;;; qwen-companion-session-list-test.el ends here
